// One image: its result in words and numbers, and where it is unusual.

const WORDS = JSON.parse(element("component-words").textContent);
const EXPLAINED = 12; // explanations in memory

function make(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function fact(term, text) {
  const row = make("div");
  row.append(make("dt", "", term), make("dd", "", text));
  return row;
}

// Two digits, rounded up: a p-value must not be understated.
function roundedUp(share) {
  if (share <= 0) return "0";
  const unit = 10 ** (Math.floor(Math.log10(share)) - 1);
  return String(Number((Math.ceil(share / unit - 1e-9) * unit).toPrecision(2)));
}

function pValueText(value, smallest) {
  return value <= smallest * (1 + 1e-9) ? `≤\u00a0${roundedUp(smallest)}` : roundedUp(value);
}

// Scores with enough decimals to distinguish normal images.
function scoreFormat(spread) {
  const decimals = 2 - Math.floor(Math.log10(spread || 1));
  return (score) => (decimals <= 8 && Math.abs(score) < 1e9 ? score.toFixed(Math.max(0, decimals)) : score.toPrecision(6));
}

function percent(share) {
  return `${roundedUp(100 * share)}\u00a0%`;
}

const stateOf = (entry) => (entry.error ? "refused" : entry.is_ood ? "flagged" : "normal");

function decision(entry, detector) {
  if (entry.error) return `It could not be scored: ${entry.error}`;
  const share = entry.p_value <= detector.smallestP * (1 + 1e-9) ? "at most" : "about";
  const rest = `${share} ${percent(entry.p_value)} of normal images score as high.`;
  return entry.is_ood ? `Unlike the normal images: ${rest}` : `Like the normal images: ${rest}`;
}

class Detail {
  constructor() {
    this.explained = []; // entries whose explanation is kept, oldest first
    this.entry = null;
  }

  forget() {
    this.entry = null;
    this.explained = [];
    element("detail").hidden = true;
  }

  show(entry, detector) {
    const changed = this.entry !== entry;
    this.entry = entry;
    element("detail").hidden = false;
    element("badge").textContent = stateOf(entry);
    element("badge").className = `badge ${stateOf(entry)}`;
    element("time").textContent = entry.time.toLocaleString();
    element("time").dateTime = entry.time.toISOString();
    element("image-name").textContent = entry.name;
    element("said").textContent = decision(entry, detector);
    element("numbers").hidden = Boolean(entry.error);
    if (!entry.error) {
      element("score").textContent = detector.scoreText(entry.score);
      element("threshold").textContent = Number.isFinite(detector.threshold) ? detector.scoreText(detector.threshold) : "none";
      element("p-value").textContent = pValueText(entry.p_value, detector.smallestP);
    }
    this.showComponents(entry);
    this.showPicture(entry);
    element("accepting").hidden = !(entry.is_ood && entry.file && detector.kind === "detector") && !entry.accepted;
    element("accept").hidden = Boolean(entry.accepted);
    element("accept").disabled = Boolean(refusal("admin"));
    element("accept-note").textContent = entry.accepted ?? refusal("admin");
    if (changed) this.explain(entry, detector);
  }

  showComponents(entry) {
    const components = Object.entries(entry).filter(([name, z]) => name.startsWith("z_") && z !== null).map(([name, z]) => [name.slice(2), z]);
    const significant = (entry.significant ?? "").split(",");
    const said = new Map((entry.explanation?.components ?? []).map((each) => [each.name, each.text]));
    const full = Math.max(6, ...components.map(([, z]) => z));
    element("components").hidden = components.length === 0;
    element("components").replaceChildren(...components.map(([name, z]) => {
      const row = make("div", significant.includes(name) ? "significant" : "");
      const bar = make("i");
      bar.style.setProperty("--share", String(Math.max(0, Math.min(1, z / full))));
      const value = make("dd");
      value.append(bar, make("span", "", `z\u00a0=\u00a0${z.toFixed(1)}`));
      row.append(make("dt", "", said.get(name) ?? WORDS[name] ?? name), value);
      return row;
    }));
    const reasons = (entry.explanation?.reasons ?? []).slice(said.has("acquisition") ? 1 : 0); // it names the first
    element("reasons").hidden = reasons.length === 0;
    element("reasons").replaceChildren(...reasons.map(({ text, z }) => make("li", "", `${text} (z\u00a0=\u00a0${z.toFixed(1)})`)));
  }

  showPicture(entry) {
    const { explanation } = entry;
    const source = explanation?.image ?? entry.preview;
    const view = element("picture");
    view.hidden = !source;
    if (source && view.getAttribute("src") !== source) view.src = source;
    view.alt = explanation ? `${entry.name}, as the model receives it` : entry.name;
    element("detail").classList.toggle("blank", !source);
    element("heatmap").hidden = element("switch").hidden = element("legend").hidden = !explanation;
    element("show-heatmap").disabled = !explanation;
    if (explanation) element("heatmap").src = explanation.heatmap;
    else element("heatmap").removeAttribute("src");
  }

  // The heatmap, for images whose file the page has.
  async explain(entry, detector) {
    const note = element("explaining");
    note.textContent = "";
    if (entry.error) return;
    if (!entry.file) {
      note.textContent = refusal("score") ? "" : "The service keeps a small image only: drop the file here to see where it is unusual.";
      return;
    }
    if (entry.explanation) return;
    note.textContent = "Computing the heatmap …";
    await pause(150); // images that are passed quickly are not explained
    if (this.entry !== entry) return;
    try {
      entry.explanation = await postFile(`${detector.path}/explain`, entry.file);
      this.keep(entry);
      if (this.entry !== entry) return;
      note.textContent = "";
      this.show(entry, detector);
    } catch (error) {
      if (this.entry === entry) note.textContent = `No heatmap: ${sentence(error)}`;
    }
  }

  keep(entry) {
    this.explained.push(entry);
    if (this.explained.length > EXPLAINED) delete this.explained.shift().explanation;
  }
}

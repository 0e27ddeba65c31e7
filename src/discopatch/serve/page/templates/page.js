// The page: one detector at a time, its last images, its stream and its monitor.

const KEPT = 300; // images that the page remembers and the chart shows
const DRAW_EVERY = 200; // milliseconds, however fast images arrive
const AT_ONCE = 2; // files that are on their way to the server together
const MOST_FILES = 500;

const page = { role: "admin", detector: null, monitor: null, entries: [], totals: null, chosen: null, subscription: null, kind: "score" };

const detail = new Detail();
const chart = new Chart(element("chart"), (entry) => choose(entry));
const strip = new Strip(element("strip"), { onChoose: (entry, options) => choose(entry, options), textOf: tileText });

function tileText(entry) {
  const score = entry.error ? "refused" : page.detector.scoreText(entry.score);
  const label = entry.error ? `${entry.name}, refused` : `${entry.name}, ${stateOf(entry)}, score ${score}`;
  return { label, caption: entry.is_ood ? `◆\u00a0${score}` : score };
}

// The fields of an image that came from a response, an event or the history.
function toEntry(fields) {
  return { id: null, ...fields, time: new Date(fields.time ?? Date.now()) };
}

// A dropped image also arrives as an event, before or after the response.
const isSame = (one, other) => one.name === other.name && one.score === other.score && one.error === other.error;

// An image without an id is not in the history yet, or its event has not arrived.
function addFromServer(fields) {
  const entry = toEntry(fields);
  if (entry.id !== null && page.entries.some((each) => each.id === entry.id)) return;
  const known = page.entries.find((each) => each.id === null && !each.apart && isSame(each, entry));
  if (known) Object.assign(known, { id: entry.id, time: entry.time, thumbnail: entry.thumbnail, evidence: entry.evidence });
  else add(entry);
}

function addDropped(file, fields) {
  const fresh = toEntry(fields);
  const known = fresh.apart ? null : page.entries.findLast((each) => each.id !== null && !each.file && isSame(each, fresh));
  const entry = known ?? fresh;
  if (entry.preview) URL.revokeObjectURL(entry.preview);
  Object.assign(entry, { file, preview: URL.createObjectURL(file) });
  if (!known) add(entry);
  return entry;
}

function add(entry) {
  page.entries.push(entry);
  if (!entry.apart) {
    page.totals.images += 1;
    page.totals.flagged += entry.is_ood ? 1 : 0;
    page.totals.refused += entry.error ? 1 : 0;
  }
  while (page.entries.length > KEPT) forget(page.entries.shift());
}

function forget(entry) {
  if (entry.preview && entry !== page.chosen) URL.revokeObjectURL(entry.preview);
  delete entry.file;
}

function choose(entry, { focus = false } = {}) {
  const before = page.chosen;
  page.chosen = entry;
  if (before && before !== entry && !page.entries.includes(before)) forget(before);
  strip.choose(entry, { focus });
  entry.onPreview = () => page.chosen === entry && detail.show(entry, page.detector);
  const tile = strip.tiles.get(entry);
  if (tile) strip.loadPreview(tile);
  detail.show(entry, page.detector);
  later();
}

// Drawing, at a limited rate.

let drawing = 0;

function later() {
  drawing ||= setTimeout(() => {
    drawing = 0;
    draw();
  }, DRAW_EVERY);
}

function draw() {
  if (!page.totals) return;
  strip.show(page.entries);
  element("empty").hidden = page.entries.length > 0;
  chart.draw({ ...page, entries: page.entries.filter((each) => !each.apart) });
  drawHeader();
  drawTotals();
  drawChange();
}

function headline({ totals, monitor }) {
  if (monitor.alarm) return "The stream has changed";
  return totals.images ? `No change in ${counted(monitor.images, "image")}` : "Waiting for the first image";
}

const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function setText(id, text) {
  if (element(id).textContent !== text) element(id).textContent = text; // unchanged text is not announced again by screen readers
}

function drawHeader() {
  const { detector, monitor } = page;
  setText("headline", headline(page));
  element("headline").classList.toggle("alarm", monitor.alarm);
  setText("outcome", monitor.alarm ? `The alarm came with image ${monitor.alarm_at.toLocaleString("en")} of ${(monitor.images + monitor.refused).toLocaleString("en")}.` : `${capitalised(monitor.text)}.`);
  setText("alert", monitor.alarm ? `The stream of ${detector.name} has changed.` : "");
  document.title = `${monitor.alarm ? "Alarm" : "discopatch"}: ${detector.name}`;
}

function drawTotals() {
  const { totals, monitor } = page;
  setText("scored", (totals.images - totals.refused).toLocaleString("en"));
  setText("flagged", totals.flagged.toLocaleString("en"));
  setText("refused", totals.refused.toLocaleString("en"));
  element("flagged-total").classList.toggle("warn", totals.flagged > 0);
  setText("evidence", evidenceText(monitor.log10_evidence));
  setText("evidence-label", `evidence of a change; an alarm at ${monitor.threshold.toLocaleString("en")}`);
  element("evidence-total").classList.toggle("warn", monitor.alarm);
}

function evidenceText(log10) {
  if (!Number.isFinite(log10)) return "0";
  return log10 > -3 && log10 < 5 ? String(Number((10 ** log10).toPrecision(2))) : powerText(Math.floor(log10));
}

const MOVED = { higher: "scores are higher", lower: "scores are lower", alike: "images are more alike than normal ones" };

function drawChange() {
  const { monitor } = page;
  element("change").hidden = !monitor.alarm && !monitor.alarms.length;
  element("restart").hidden = element("restart-note").hidden = !monitor.alarm;
  const facts = [];
  if (monitor.since) {
    const { image, earliest, latest } = monitor.since;
    const between = earliest === latest ? "" : `, between ${earliest.toLocaleString("en")} and ${latest.toLocaleString("en")}`;
    facts.push(fact("Since", `image ${image.toLocaleString("en")}${between}`));
  }
  if (monitor.direction) facts.push(fact("What changed", MOVED[monitor.direction] ?? monitor.direction));
  if (monitor.component) facts.push(fact("Most in", WORDS[monitor.component] ?? monitor.component));
  if (monitor.examples.length) facts.push(fact("Example images", monitor.examples.map((each) => each.name).join(", ")));
  for (const alarm of monitor.alarms.slice(0, 5)) facts.push(fact(alarm.time.toLocaleString(), capitalised(alarm.text)));
  element("change-facts").replaceChildren(...facts);
}

// Files are sent one by one, so that each has its own error.

async function takeFiles(files) {
  if (!page.detector || !files.length || refusal("score")) return;
  const taken = files.slice(0, MOST_FILES);
  const left = files.length - taken.length;
  const { detector } = page;
  const added = [];
  const waiting = [...taken];
  const work = async () => {
    for (let file = waiting.shift(); file; file = waiting.shift()) {
      const fields = await score(file, detector);
      if (page.detector !== detector) return;
      const entry = addDropped(file, fields);
      if (entry.explanation) detail.keep(entry);
      added.push(entry);
      if (added.length === 1) choose(entry);
      setText("progress", `Scored ${added.length} of ${counted(taken.length, "image")} …`);
      draw();
    }
  };
  setText("progress", `Scoring ${counted(taken.length, "image")} …`);
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (page.detector !== detector) return;
  strip.show(page.entries, { force: true });
  const worst = added.reduce((one, other) => ((other.score ?? -Infinity) > (one.score ?? -Infinity) ? other : one));
  choose(worst);
  setText("progress", summary(added) + (left ? ` The other ${left} were left out: drop at most ${MOST_FILES} at once.` : ""));
}

// The result of a file. Apart from the stream it is only explained, which monitor and history do not count.
async function score(file, detector) {
  const apart = !element("counts").checked;
  try {
    if (apart) {
      const explanation = await postFile(`${detector.path}/explain`, file);
      const { image, heatmap, anomaly_map, components, reasons, regions, size, ...row } = explanation;
      return { ...row, explanation, apart };
    }
    const { predictions, monitor } = await postFile(`${detector.path}/score`, file);
    if (page.detector === detector) page.monitor = { ...page.monitor, ...monitor };
    return predictions[0];
  } catch (error) {
    return { name: file.name || "pasted image", error: sentence(error), apart: true };
  }
}

function summary(entries) {
  const of = (state) => entries.filter((each) => stateOf(each) === state).length;
  if (entries.length === 1) return `${entries[0].name}: ${decision(entries[0], page.detector)}`;
  return `${counted(entries.length, "image")}: ${of("flagged")} flagged, ${of("normal")} normal, ${of("refused")} refused.`;
}

function acceptFiles() {
  const isFiles = (event) => event.dataTransfer?.types.includes("Files");
  const input = element("files");
  input.addEventListener("change", () => {
    takeFiles([...input.files]);
    input.value = "";
  });
  addEventListener("dragover", (event) => {
    if (!isFiles(event)) return;
    event.preventDefault();
    element("drop").classList.toggle("ready", !refusal("score"));
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) element("drop").classList.remove("ready");
  });
  addEventListener("drop", (event) => {
    if (!isFiles(event)) return;
    event.preventDefault();
    element("drop").classList.remove("ready");
    takeFiles([...event.dataTransfer.files]);
  });
  addEventListener("paste", (event) => takeFiles([...(event.clipboardData?.files ?? [])]));
}

// One detector: its settings, its last predictions, and new ones as they arrive.

function toDetector(fields) {
  return {
    name: fields.name,
    path: `/v1/detectors/${encodeURIComponent(fields.name)}`,
    threshold: fields.threshold ?? Infinity, // there is none where no image can be flagged
    rate: fields.false_alarm_rate,
    smallestP: 1 / (fields.n_calibration + 1),
    scoreText: scoreFormat(fields.spread || Math.abs(fields.threshold ?? 1)),
    guarantee: fields.guarantee,
    kind: fields.kind,
    settings: fields.settings ?? {},
  };
}

function toMonitor(fields) {
  return { ...fields, alarms: fields.alarms.map((each) => ({ ...each, time: new Date(each.time) })) };
}

async function readMonitor(detector) {
  const monitor = toMonitor(await getJson(`${detector.path}/monitor`));
  if (page.detector === detector) page.monitor = monitor;
}

async function open(name) {
  page.subscription?.end();
  detail.forget();
  for (const entry of page.entries) forget(entry);
  Object.assign(page, { detector: null, monitor: null, entries: [], totals: null, chosen: null });
  strip.choose(null);
  const detector = toDetector(await getJson(`/v1/detectors/${encodeURIComponent(name)}`));
  page.detector = detector;
  await catchUp(detector);
  if (page.detector !== detector) return;
  element("name").textContent = name;
  element("guarantee").textContent = capitalised(detector.guarantee);
  drawSettings(detector);
  draw();
  let wasLost = false;
  page.subscription = new Subscription(`${detector.path}/events`, {
    lastId: page.entries.at(-1)?.id,
    onEvent: (event) => page.detector === detector && onEvent(event, detector),
    onState: (state, more) => {
      if (state === "live" && wasLost) catchUp(detector).then(later, () => {}); // more may be missing than events tell
      if (state !== "connecting") wasLost = state === "lost";
      showConnection(state, more);
    },
  });
}

// Reads the last predictions and adds those that the page does not have.
async function catchUp(detector) {
  const [{ entries, ...totals }] = await Promise.all([getJson(`${detector.path}/recent?limit=${KEPT}`), readMonitor(detector)]);
  if (page.detector !== detector) return;
  page.totals = { images: 0, flagged: 0, refused: 0 };
  for (const entry of entries.reverse()) addFromServer(entry);
  page.entries.sort((one, other) => one.time - other.time);
  page.totals = totals;
}

function onEvent({ type, data }, detector) {
  if (type === "prediction") addFromServer(data);
  if (type === "monitor") page.monitor = { ...page.monitor, ...data };
  if (type === "alarm") readMonitor(detector).then(later, () => {});
  later();
}

function drawSettings(detector) {
  const shown = Object.entries(detector.settings).filter(([, value]) => value !== null && typeof value !== "object");
  element("settings").replaceChildren(...shown.map(([name, value]) => fact(name.replaceAll("_", " "), String(value))));
}

let retry = 0;

function showConnection(state, { wait = 0, problem = "" }) {
  clearTimeout(retry);
  element("connection").className = `connection ${state}`;
  element("reconnect").hidden = state !== "lost";
  if (state !== "lost") return setText("connection", state === "live" ? "Live" : "Connecting");
  setText("connection", `Not connected. ${problem ? `${problem} ` : ""}Trying again in ${Math.max(1, Math.round(wait / 1000))} s.`);
}

// What the token does not allow is disabled, and says why.
function showRole(role) {
  page.role = role;
  for (const [id, needed] of [["files", "score"], ["counts", "score"], ["restart", "admin"]]) {
    element(id).disabled = Boolean(refusal(needed));
  }
  element("drop").classList.toggle("disabled", Boolean(refusal("score")));
  setText("drop-note", refusal("score") || "or choose files, or paste");
  setText("restart-note", refusal("admin"));
}

async function start() {
  try {
    const { detectors, role } = await getJson("/v1/detectors");
    showRole(role);
    const names = detectors.map((each) => each.name);
    const wanted = decodeURIComponent(location.hash.slice(1));
    const name = names.includes(wanted) ? wanted : names[0];
    element("detector").replaceChildren(...names.map((each) => new Option(each, each, false, each === name)));
    element("chooser").hidden = names.length < 2;
    element("name").hidden = names.length > 1;
    await open(name);
  } catch (error) {
    showConnection("lost", { wait: 5000, problem: error instanceof Problem ? error.message : "" });
    retry = setTimeout(start, 5000);
  }
}

element("detector").addEventListener("change", (event) => {
  history.replaceState(null, "", `#${encodeURIComponent(event.target.value)}`);
  start();
});
element("reconnect").addEventListener("click", () => (page.subscription ? page.subscription.retry() : start()));
element("restart").addEventListener("click", async () => {
  if (!confirm("Begin a new stream? The evidence starts anew; alarms stay in the list.")) return;
  const { detector } = page;
  await request(`${detector.path}/monitor/restart`, { method: "POST" }).catch((error) => setText("progress", sentence(error)));
  await readMonitor(detector).catch(() => {});
  later();
});
element("accept").addEventListener("click", async () => {
  const { chosen: entry, detector } = page;
  if (!confirm(`Accept ${entry.name} as normal? Images like it are no longer flagged. The detector changes in this service and in its file.`)) return;
  setText("accept-note", "Accepting …");
  try {
    const { predictions, accepted } = await postFile(`${detector.path}/accept`, entry.file);
    const [now] = predictions;
    const result = now.is_ood ? "It is still flagged" : "It is normal now";
    entry.accepted = `Accepted. ${result}: p = ${pValueText(now.p_value, detector.smallestP)}. ${counted(accepted.length, "accepted image")} in all.`;
    await catchUp(detector).catch(() => {});
  } catch (error) {
    setText("accept-note", sentence(error));
    return;
  }
  if (page.chosen === entry) detail.show(entry, detector);
  later();
});
for (const radio of document.getElementsByName("kind")) {
  radio.addEventListener("change", () => {
    page.kind = radio.value;
    draw();
  });
}
new ResizeObserver(later).observe(element("chart").parentElement);
acceptFiles();
start();

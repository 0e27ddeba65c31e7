// A chart of the stream: one mark per image above, the evidence of the monitor below.

const SVG = "http://www.w3.org/2000/svg";
const FRAME = { left: 46, right: 14, top: 30, between: 40, bottom: 28 };
const LOWEST_EVIDENCE = -3; // log10; lower values are drawn at the bottom
const MOST_ALARMS = 2.5; // times the alarm level in log10; higher values are drawn at the top

function svg(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];

// A few round numbers between low and high.
function ticks(low, high, count = 4) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((each) => each * power >= rough) ?? 10);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}

// The upper panel: heights that rise with the score, their range, the threshold and the labels.
function scoreScale(entries, detector) {
  const values = entries.filter((each) => !each.error).map((each) => each.score).sort((one, other) => one - other);
  const threshold = Number.isFinite(detector.threshold) ? detector.threshold : null;
  // Extreme images are drawn at the edge; otherwise they would compress all others into one line.
  const low = Math.min(quantile(values, 0.02) ?? 0, threshold ?? Infinity);
  const high = Math.max(quantile(values, 0.97) ?? 1, threshold ?? -Infinity);
  const margin = 0.12 * (high - low || Math.abs(high) || 1);
  const [bottom, top] = [low - margin, high + margin];
  return {
    height: (entry) => entry.score, bottom, top, threshold,
    ticks: ticks(bottom, top).map((at) => [at, String(at)]),
    title: "Score", name: threshold === null ? "" : `threshold ${detector.scoreText(threshold)}`,
  };
}

function pValueScale(entries, detector) {
  const top = -Math.log10(detector.smallestP) + 0.15;
  const powers = Array.from({ length: Math.floor(top) + 1 }, (_, power) => [power, String(Number((10 ** -power).toPrecision(1)))]);
  const threshold = detector.rate >= detector.smallestP ? -Math.log10(detector.rate) : null;
  return {
    height: (entry) => -Math.log10(entry.p_value), bottom: -0.05, top, threshold, ticks: powers,
    title: "p-value", name: threshold === null ? "" : `flagged at ${detector.rate}`,
  };
}

// To the second within ten minutes, with the day beyond one.
function clockText(date, span) {
  const clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (span < 600_000) clock.second = "2-digit";
  if (span > 86_400_000) Object.assign(clock, { month: "short", day: "numeric" });
  return new Intl.DateTimeFormat("en", clock).format(date);
}

class Chart {
  constructor(root, onChoose) {
    this.root = root;
    root.addEventListener("click", (event) => {
      const nearest = this.nearest?.(event.clientX - root.getBoundingClientRect().left);
      if (nearest) onChoose(nearest);
    });
  }

  draw({ entries, detector, monitor, kind, chosen }) {
    const width = Math.max(240, Math.round(this.root.clientWidth));
    const small = width < 480;
    const upper = small ? 190 : 240;
    const lower = small ? 110 : 130;
    const height = FRAME.top + upper + FRAME.between + lower + FRAME.bottom;
    const plot = { left: FRAME.left, right: width - FRAME.right };
    const step = (plot.right - plot.left) / Math.max(entries.length, 20);
    const x = (index) => plot.right - (entries.length - index - 0.5) * step; // the newest stands at the right
    this.nearest = (at) => entries[Math.max(0, Math.min(entries.length - 1, Math.floor(entries.length - (plot.right - at) / step)))];

    const parts = [];
    const scale = kind === "p_value" ? pValueScale(entries, detector) : scoreScale(entries, detector);
    parts.push(...this.panel(scale, plot, FRAME.top, upper));
    const marks = svg("g", { class: "marks" });
    const y = (value) => FRAME.top + upper * (1 - (value - scale.bottom) / (scale.top - scale.bottom));
    entries.forEach((entry, index) => marks.append(this.mark(entry, x(index), y, scale, FRAME.top + upper, entry === chosen, small)));
    parts.push(marks);
    parts.push(...this.evidence(entries, monitor, x, plot, FRAME.top + upper + FRAME.between, lower));
    parts.push(...this.times(entries, x, plot, height - 8));
    this.root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.root.setAttribute("height", height);
    this.root.setAttribute("aria-label", this.inWords(entries, monitor, kind));
    this.root.replaceChildren(...parts);
  }

  panel(scale, plot, top, height) {
    const y = (value) => top + height * (1 - (value - scale.bottom) / (scale.top - scale.bottom));
    const parts = [];
    if (scale.threshold !== null) {
      const at = y(scale.threshold);
      parts.push(svg("rect", { class: "side", x: plot.left, y: top, width: plot.right - plot.left, height: Math.max(0, at - top) }));
    }
    for (const [value, text] of scale.ticks) {
      parts.push(svg("path", { d: `M${plot.left} ${y(value).toFixed(1)}H${plot.right}` }));
      parts.push(svg("text", { class: "end", x: plot.left - 8, y: (y(value) + 4).toFixed(1) }, text));
    }
    parts.push(svg("text", { class: "name", x: plot.left, y: top - 12 }, scale.title));
    if (scale.threshold !== null) {
      const at = y(scale.threshold).toFixed(1);
      parts.push(svg("path", { class: "threshold", d: `M${plot.left} ${at}H${plot.right}` }));
      parts.push(svg("text", { class: "threshold end", x: plot.right, y: top - 12 }, `– – ${scale.name}`));
    }
    return parts;
  }

  // Flagged images are diamonds and refused ones crosses at the bottom, which is readable without colour.
  mark(entry, x, y, scale, base, isChosen, small) {
    const at = entry.error ? base : Math.max(y(scale.top) + 7, y(Math.max(scale.bottom, scale.height(entry))));
    const size = small ? 3.5 : 4.5;
    const place = `M${x.toFixed(1)} ${at.toFixed(1)}`;
    const ring = isChosen ? `${place}m-8 0a8 8 0 1 0 16 0a8 8 0 1 0-16 0` : "";
    const group = svg("g", { class: entry.error ? "refused" : entry.is_ood ? "flagged" : "normal" });
    if (entry.error) group.append(svg("path", { d: `${place}m-3-3l6 6m0-6l-6 6` }));
    else if (entry.is_ood) group.append(svg("path", { d: `${place}m0-${size}l${size} ${size}l-${size} ${size}l-${size}-${size}z` }));
    else group.append(svg("circle", { cx: x.toFixed(1), cy: at.toFixed(1), r: small ? 2 : 2.6 }));
    if (ring) group.append(svg("path", { class: "ring", d: ring }));
    return group;
  }

  evidence(entries, monitor, x, plot, top, height) {
    const alarmAt = Math.log10(monitor.threshold);
    const known = entries.map((each, index) => [index, each.evidence]).filter(([, value]) => Number.isFinite(value));
    const values = known.map(([, value]) => value);
    const bottom = Math.max(LOWEST_EVIDENCE, Math.min(-0.5, ...values));
    const high = Math.max(alarmAt * 1.2, Math.min(MOST_ALARMS * alarmAt, 1.05 * Math.max(0, ...values)));
    const scale = {
      bottom, top: high, threshold: alarmAt, title: plot.right < 460 ? "Evidence" : "Evidence of a change (log scale)", name: `alarm at ${monitor.threshold.toLocaleString()}`,
      ticks: ticks(bottom, high, 3).filter(Number.isInteger).map((at) => [at, powerText(at)]),
    };
    const y = (value) => top + height * (1 - (Math.min(high, Math.max(bottom, value)) - bottom) / (high - bottom));
    const parts = this.panel(scale, plot, top, height);
    const line = known.map(([index, value], number) => `${number ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    if (line) parts.push(svg("path", { class: "line", d: line }));
    for (const alarm of monitor.alarms) {
      const index = entries.findIndex((each) => each.time >= alarm.time);
      if (index < 0 || (index === 0 && entries[0].time > alarm.time)) continue;
      const at = x(index).toFixed(1);
      parts.push(svg("path", { class: "alarm", d: `M${at} ${FRAME.top}V${top + height}` }));
      const left = x(index) > plot.right - 60;
      parts.push(svg("text", { class: left ? "alarm end" : "alarm", x: Number(at) + (left ? -6 : 6), y: top - FRAME.between + 15 }, "alarm"));
    }
    return parts;
  }

  // From the newest backwards, as far apart as the labels are wide.
  times(entries, x, plot, y) {
    if (!entries.length) return [];
    const last = entries.length - 1;
    const span = entries[last].time - entries[0].time;
    const parts = [svg("text", { class: "end", x: plot.right, y }, clockText(entries[last].time, span))];
    const apart = 10 * parts[0].textContent.length + 30;
    for (let right = plot.right - apart; right > plot.left + apart / 4; right -= apart) {
      const entry = this.nearest(right);
      if (x(entries.indexOf(entry)) > right + 20) break; // there were none so early
      parts.push(svg("text", { class: "middle", x: right.toFixed(1), y }, clockText(entry.time, span)));
    }
    return parts;
  }

  inWords(entries, monitor, kind) {
    if (!entries.length) return "No image yet";
    const flagged = entries.filter((each) => each.is_ood).length;
    return `${kind === "p_value" ? "p-values" : "Scores"} of the last ${counted(entries.length, "image")}, ${flagged} of them flagged. The monitor: ${monitor.text}.`;
  }
}

const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

function powerText(power) {
  if (power >= -2 && power <= 3) return String(Number((10 ** power).toPrecision(1)));
  return `10${String(power).replace(/[-\d]/g, (each) => SUPERSCRIPT[each])}`;
}

function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

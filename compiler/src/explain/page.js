"use strict";
const report = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);

// Elements; text goes in as text, never as markup.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
function draw(tag, attributes, title) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (title) element.append(Object.assign(document.createElementNS("http://www.w3.org/2000/svg", "title"), { textContent: title }));
  return element;
}
function words(x, y, text, anchor) {
  const element = draw("text", { x, y, "text-anchor": anchor || "start" });
  element.textContent = text;
  return element;
}

const bytes = (n) => {
  const units = ["B", "KB", "MB", "GB"];
  let i = 0;
  while (n >= 1000 && i < 3) { n /= 1000; i += 1; }
  return `${n >= 100 || i === 0 ? Math.round(n) : n.toFixed(n >= 10 ? 1 : 2)} ${units[i]}`;
};
const micros = (us) => (us >= 1000 ? `${(us / 1000).toFixed(2)} ms` : `${us.toFixed(1)} µs`);
const several = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
const took = (step) => (step.measured_us === null ? step.predicted_us : step.measured_us);
const sum = (list, of) => list.reduce((total, item) => total + of(item), 0);
const measured = () => entry.steps.some((step) => step.measured_us !== null);
// The module path of a step: the third part of its last origin, unless that is a line of Python.
const moduleOf = (step) => {
  const part = (step.origin[step.origin.length - 1] || "").split(" · ")[2] || "";
  return /:\d+$/.test(part) ? "" : part;
};
const groupOf = (step, depth) => moduleOf(step).split(".").slice(0, depth).join(".");
// The fewest levels of modules that give the reader more than a handful of groups.
const GROUPS = 8, LEVELS = 6;
function automaticDepth() {
  for (let depth = 1; depth < LEVELS; depth += 1) if (new Set(entry.steps.map((step) => groupOf(step, depth))).size >= GROUPS) return depth;
  return LEVELS;
}
const text = (step) => [step.label, step.kernel, ...step.origin].join("\n").toLowerCase();

let entry = report.entries[0];

function tiles() {
  const barriers = Math.max(0, ...entry.steps.map((step) => step.wave));
  const facts = [
    ["Dispatches", entry.steps.length],
    ["Barriers", entry.barriers],
    ["Waves of dispatches", barriers + 1],
    ["Kernels (pipelines)", new Set(entry.steps.map((step) => step.kernel)).size],
    ["Arena", `${bytes(entry.arena_bytes)}, least ${bytes(entry.live_bytes)}`],
    ["Weights", bytes(sum(report.weights, (weight) => weight.bytes))],
    ["Work at best", micros(sum(entry.steps, (step) => step.predicted_us))],
    ["Drains at barriers", micros(entry.drain_us)],
    ["A run at best", micros(sum(entry.steps, (step) => step.predicted_us) + entry.drain_us)],
  ];
  if (measured()) facts.push(["Measured", micros(sum(entry.steps, took))]);
  at("tiles").replaceChildren(...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value)))));
}

function stepBody(step) {
  const list = (title, lines) => (lines.length ? [make("p", {}, title), make("ul", {}, ...lines.map((line) => make("li", {}, make("code", {}, line))))] : []);
  const kernel = report.kernels.find((kernel) => kernel.name === step.kernel);
  return make("div", { class: "body" },
    make("p", {}, `Workgroups ${step.groups}; reads ${bytes(step.read_bytes)}, writes ${bytes(step.written_bytes)}; ${(step.flops / 1e9).toPrecision(3)} GFLOP; wave ${step.wave}`),
    ...list("Stands for", step.origin), ...list("Why so", step.reasons), make("p", {}, "Kernel"), make("code", {}, kernel ? kernel.spec : step.kernel));
}
function stepLine(step) {
  const details = make("details", {}, make("summary", {},
    make("span", {}, `${step.number}  ${step.label}`), make("span", { class: "bar" }, step.kernel),
    make("span", { class: "number" }, bytes(step.bytes)), make("span", { class: "number" }, micros(step.predicted_us)),
    make("span", { class: "number" }, step.measured_us === null ? "" : micros(step.measured_us))));
  details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(stepBody(step)); });
  return details;
}
// What the columns are; the last is empty where nothing was measured, and left out.
function columnHeads(first, second) {
  at("step-list").classList.toggle("measured", measured());
  return make("div", { class: "heads" }, make("span", {}, first), make("span", {}, second),
    ...["Bytes moved", "At best", "Measured"].map((name) => make("span", { class: "number" }, name)));
}
function groupLine(name, steps, open) {
  const details = make("details", { class: "group" }, make("summary", {},
    make("span", {}, name || "(no module)"), make("span", { class: "bar" }, several(steps.length, "step")),
    make("span", { class: "number" }, bytes(sum(steps, (step) => step.bytes))), make("span", { class: "number" }, micros(sum(steps, (step) => step.predicted_us))),
    make("span", { class: "number" }, measured() ? micros(sum(steps, took)) : "")));
  const fill = () => { if (details.children.length === 1) details.append(...steps.map(stepLine)); };
  details.addEventListener("toggle", fill);
  if (open) { fill(); details.open = true; }
  return details;
}
function steps() {
  const wanted = at("search").value.trim().toLowerCase();
  const shown = entry.steps.filter((step) => !wanted || text(step).includes(wanted));
  at("found").textContent = wanted ? `${shown.length} of ${several(entry.steps.length, "step")}, ${micros(sum(shown, took))}` : "";
  const chosen = at("depth").value, depth = chosen === "auto" ? automaticDepth() : Number(chosen), byCost = at("order").value === "cost";
  const sorted = (list, of) => (byCost ? [...list].sort((a, b) => of(b) - of(a)) : list);
  if (depth === 0) {
    at("step-list").replaceChildren(columnHeads("Step", "Kernel"), ...sorted(shown, took).map(stepLine));
    return;
  }
  const groups = [];
  for (const step of shown) {
    const name = groupOf(step, depth);
    const last = byCost ? groups.find((group) => group.name === name) : groups[groups.length - 1];
    if (last && last.name === name) last.steps.push(step); else groups.push({ name, steps: [step] });
  }
  const ordered = sorted(groups, (group) => sum(group.steps, took));
  at("step-list").replaceChildren(columnHeads("Module", "Steps"), ...ordered.map((group) => groupLine(group.name, sorted(group.steps, took), Boolean(wanted) && groups.length <= 12)));
}

// Tensors by time (steps, to the right) and address (upwards, chunks on top of each other).
function memory() {
  const width = 1200, height = 420, left = 70, bottom = 24, n = Math.max(1, entry.recorded);
  const total = Math.max(1, entry.arena_bytes);
  const x = (step) => left + (width - left - 10) * step / n, y = (address) => height - bottom - (height - bottom - 10) * address / total;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Tensors in the arena by step and address" });
  const starts = [];
  entry.chunks.reduce((start, size) => { starts.push(start); return start + size; }, 0);
  for (const [i, buffer] of entry.buffers.entries()) {
    const start = starts[buffer.chunk] + buffer.offset;
    svg.append(draw("rect", {
      class: "buffer", x: x(buffer.first), width: Math.max(1, x(buffer.last + 1) - x(buffer.first)), y: y(start + buffer.bytes),
      height: Math.max(0.5, y(start) - y(start + buffer.bytes)), fill: `hsl(${(i * 47) % 360} 45% 55%)`,
    }, `${buffer.name}: ${bytes(buffer.bytes)}, steps ${buffer.first} to ${buffer.last}`));
  }
  const live = new Float64Array(n + 1);
  for (const buffer of entry.buffers) for (let step = buffer.first; step <= buffer.last && step < n; step += 1) live[step] += buffer.bytes;
  let path = "";
  for (let step = 0; step < n; step += 1) path += `${step ? "L" : "M"}${x(step).toFixed(1)} ${y(live[step]).toFixed(1)}H${x(step + 1).toFixed(1)}`;
  svg.append(draw("path", { class: "live", d: path }), draw("line", { class: "bound", x1: left, x2: width - 10, y1: y(entry.live_bytes), y2: y(entry.live_bytes) }));
  svg.append(words(left - 6, y(total) + 8, bytes(total), "end"), words(left - 6, y(0), "0", "end"), words(left, height - 6, "first step"), words(width - 10, height - 6, `last of ${several(n, "step")}, barriers counted`, "end"));
  at("memory-chart").replaceChildren(svg);
  const ratio = entry.live_bytes ? (entry.arena_bytes / entry.live_bytes).toFixed(3) : "1";
  at("memory-words").textContent = `Arena ${bytes(entry.arena_bytes)} in ${several(entry.chunks.length, "chunk")}: ${ratio} of the least possible. To the right: steps and barriers in the order of the recording; upwards: addresses. Dashed: most bytes live at one step; line: bytes live. Inputs and outputs ${bytes(entry.io_bytes)}, state ${bytes(entry.state_bytes)}. Point at a tensor for its name.`;
}

// Arithmetic per byte against arithmetic per second, both logarithmic.
function roofline() {
  const width = 1200, height = 360, left = 70, bottom = 30, peak = Math.max(report.f32_tflop_per_s, report.matrix_tflop_per_s) * 1e12, band = report.gb_per_s * 1e9;
  const x = (intensity) => left + (width - left - 20) * (Math.log10(Math.max(intensity, 0.01)) + 2) / 6;
  const y = (rate) => height - bottom - (height - bottom - 20) * Math.max(0, Math.log10(Math.max(rate, 1)) - Math.log10(peak) + 5) / 5;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Steps by arithmetic per byte and arithmetic per second" });
  svg.append(draw("line", { class: "axis", x1: left, x2: width - 20, y1: height - bottom, y2: height - bottom }), draw("line", { class: "axis", x1: left, x2: left, y1: 20, y2: height - bottom }));
  for (const roof of new Set([peak, report.f32_tflop_per_s * 1e12])) {
    svg.append(draw("path", { class: "roof", d: `M${x(0.01)} ${y(0.01 * band)}L${x(roof / band)} ${y(roof)}H${width - 20}` }), words(width - 24, y(roof) - 4, `${(roof / 1e12).toFixed(1)} TFLOP/s`, "end"));
  }
  for (const intensity of [0.01, 0.1, 1, 10, 100, 1000, 10000]) svg.append(words(x(intensity), height - 12, `${intensity}`, "middle"));
  for (let rate = peak / 1e5; rate <= peak; rate *= 10) {
    const rounded = 10 ** Math.ceil(Math.log10(rate));
    if (rounded <= peak) svg.append(words(left - 6, y(rounded) + 4, rounded >= 1e12 ? `${rounded / 1e12}` : `${+(rounded / 1e12).toPrecision(1)}`, "end"));
  }
  svg.append(words(width - 20, height - bottom - 6, "operations per byte", "end"), words(left + 6, 16, "TFLOP/s"));
  const slow = new Set();
  for (const step of entry.steps) {
    const us = took(step);
    if (!(step.flops > 0 && step.bytes > 0 && us > 0)) continue;
    const rate = step.flops / (us * 1e-6), far = step.measured_us !== null && step.predicted_us < step.measured_us / 4;
    if (far) slow.add(step.number);
    svg.append(draw("circle", { class: far ? "slow" : "step", cx: x(step.flops / step.bytes).toFixed(1), cy: y(rate).toFixed(1), r: 3.5 }, `${step.number} ${step.label}: ${micros(us)}, ${(rate / 1e12).toPrecision(3)} TFLOP/s\n${step.kernel}`));
  }
  at("roofline-chart").replaceChildren(svg);
  at("roofline-words").textContent = measured()
    ? `Measured times. ${slow.size} steps (marked) take more than four times what the roof allows.`
    : "Predicted times: each step lies on a roof by definition. “jvc run --steps --format json” measures, and “jvc explain --measured FILE” shows that here.";
}

// A table whose head sorts it; numbers sort by value.
function table(id, heads, rows) {
  const body = make("tbody", {});
  const fill = (order) => body.replaceChildren(...order.map((row) => make("tr", {}, ...row.map((cell) => make("td", typeof cell === "object" ? { class: "number" } : {}, typeof cell === "object" ? cell.shown : make("code", { title: String(cell) }, String(cell)))))));
  const value = (cell) => (typeof cell === "object" ? cell.value : cell);
  const head = make("tr", {}, ...heads.map((name, i) => {
    const button = make("button", { type: "button" }, name);
    let down = false;
    button.addEventListener("click", () => {
      down = !down;
      const sign = down ? -1 : 1;
      fill([...rows].sort((a, b) => (value(a[i]) < value(b[i]) ? -sign : value(a[i]) > value(b[i]) ? sign : 0)));
    });
    return make("th", rows.length && typeof rows[0][i] === "object" ? { scope: "col", class: "number" } : { scope: "col" }, button);
  }));
  fill(rows);
  at(id).replaceChildren(make("table", {}, make("thead", {}, head), body));
}
const number = (value, shown) => ({ value, shown: shown === undefined ? String(value) : shown });

function kernels() {
  const rows = report.kernels.map((kernel) => {
    const uses = entry.steps.filter((step) => step.kernel === kernel.name);
    const us = sum(uses, took);
    return [kernel.name, number(uses.length), number(us, micros(us)), number(kernel.words * 4, bytes(kernel.words * 4)), number(kernel.subgroup, kernel.subgroup === 0 ? "any" : String(kernel.subgroup)), kernel.spec];
  });
  table("kernel-table", ["Kernel", "Uses", "Time", "SPIR-V", "Subgroup", "What it computes"], rows);
}
function whole() {
  table("weight-table", ["Weight", "Type", "Shape", "Bytes", "Chunk"], report.weights.map((weight) => [weight.name, weight.elem, weight.shape.join(" × ") || "scalar", number(weight.bytes, bytes(weight.bytes)), number(weight.chunk)]));
  const list = (id, lines) => at(id).replaceChildren(lines.length ? make("ul", {}, ...lines.map((line) => make("li", {}, make("code", {}, line)))) : make("p", {}, "Nothing."));
  list("slow-list", report.slow);
  list("decision-list", report.decisions);
}

function show() {
  tiles();
  steps();
  memory();
  roofline();
  kernels();
}

at("title").textContent = `${report.name} for ${report.device}`;
at("subtitle").textContent = report.description;
at("entry").append(...report.entries.map((one, i) => make("option", { value: String(i) }, one.name)));
at("entry").addEventListener("change", () => { entry = report.entries[Number(at("entry").value)]; show(); });
for (const id of ["search", "depth", "order"]) at(id).addEventListener("input", steps);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !["INPUT", "SELECT"].includes(document.activeElement.tagName)) { event.preventDefault(); at("search").focus(); }
  if (event.key === "Escape" && document.activeElement === at("search")) { at("search").value = ""; steps(); }
});
whole();
show();

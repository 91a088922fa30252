// A run, shown beside the page when a link leads to it: `#run-12`. What is shown stands in the JSON `run-cards`.
const stored = document.getElementById("run-cards");
const CARDS = JSON.parse("packed" in stored.dataset ? await unpacked(stored.textContent) : stored.textContent);
const SVG = "http://www.w3.org/2000/svg";
const make = (tag, text, attributes = {}) => {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};
const draw = (parent, tag, attributes, text) => {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
};
const short = value => value === null || value === undefined ? "" : typeof value !== "number" ? String(value)
  : Number.isInteger(value) && Math.abs(value) < 1e7 ? String(value) : Math.abs(value) >= 1e7 ? Number(value.toPrecision(4)).toExponential()
  : String(Number(value.toPrecision(4)));
const seconds = value => value === null ? "" : value >= 1 ? `${short(value)} s` : value >= 1e-3 ? `${short(value * 1e3)} ms` : `${short(value * 1e6)} us`;
const shown = (name, value) => value === null ? "" : /_s$/.test(name) && !/_(loss|per)_s$/.test(name) ? seconds(value) : short(value);

function curve(times, losses) {
  const [width, height, left, bottom] = [420, 170, 52, 24];
  const svg = document.createElementNS(SVG, "svg");
  const points = times.map((time, at) => [time, losses[at]]).filter(([time, loss]) => time !== null && loss !== null && loss > 0);
  if (points.length < 2) return make("p", "No loss curve: fewer than two finite losses.");
  const logs = points.map(([, loss]) => Math.log10(loss));
  const [low, high, end] = [Math.min(...logs), Math.max(...logs), points.at(-1)[0]];
  const x = time => left + (width - left - 8) * time / (end || 1);
  const y = log => 10 + (height - bottom - 10) * (high - log) / (high - low || 1);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Loss from ${short(points[0][1])} to ${short(points.at(-1)[1])} over ${seconds(end)}`);
  draw(svg, "path", { d: `M${left} 10V${height - bottom}H${width - 8}`, class: "axis" });
  draw(svg, "text", { x: left - 4, y: 16, class: "end" }, short(10 ** high));
  draw(svg, "text", { x: left - 4, y: height - bottom, class: "end" }, short(10 ** low));
  draw(svg, "text", { x: left, y: height - 6 }, "0 s");
  draw(svg, "text", { x: width - 8, y: height - 6, class: "end" }, seconds(end));
  draw(svg, "text", { x: (left + width) / 2, y: height - 6, class: "middle" }, "training time; loss is logarithmic");
  draw(svg, "path", { d: "M" + points.map(([time], at) => `${x(time).toFixed(1)} ${y(logs[at]).toFixed(1)}`).join("L"), class: "curve" });
  return svg;
}

function facts(pairs) {
  const list = make("dl");
  for (const [name, value] of pairs) if (value !== "") list.append(make("dt", name), value instanceof Node ? value : make("dd", value));
  return list;
}

function phases(values) {
  const known = CARDS.phases.map((name, at) => [name, values[at]]).filter(([, value]) => value > 0);
  const sum = known.reduce((total, [, value]) => total + value, 0);
  const both = make("div");
  const bar = make("div", null, { class: "bar", "aria-hidden": "true" });
  known.forEach(([, value], at) => bar.append(make("span", null, { class: `part-${at}`, style: `flex-grow: ${value / sum}` })));
  const list = make("ul", null, { class: "parts" });
  known.forEach(([name, value], at) => list.append(make("li", `${name.replace(/_s$/, "").replaceAll("_", " ")} ${seconds(value)}, ${Math.round(100 * value / sum)} %`, { class: `part-${at}` })));
  both.append(bar, list);
  return both;
}

function fill(card, run) {
  const link = (folder, file) => {
    const own = make("dd");
    own.append(make("a", `${folder}/${file}`, { href: encodeURI(`${folder}/${file}`) }));
    return own;
  };
  const body = make("div");
  const part = (words, ...content) => body.append(make("h3", words), ...content);
  body.append(make("p", `${run.status}${run.reason ? `: ${run.reason}` : ""}${run.excluded ? `. May not win: ${run.excluded}` : ""}`));
  const results = CARDS.results.map((name, at) => [name, shown(name, run.results[at])]);
  if (results.some(([, value]) => value !== "")) part("Results", facts(results));
  if (run.curve) part("Loss", curve(...run.curve));
  if (run.phases.some(value => value > 0)) part("Phases of a step (medians)", phases(run.phases));
  part("Train it again", make("pre", run.command));
  part("Spec", facts(CARDS.fields.map((name, at) => [name, run.fields[at]])));
  const same = make("details");
  same.append(make("summary", "The same in all runs"), facts(CARDS.common));
  body.append(same);
  const own = run.provenance.map(at => CARDS.facts[at]);
  part("Provenance", make("p", own.length ? "What differs between runs; the rest is in the section Provenance." : "As all runs: see the section Provenance."), facts(own));
  part("Files", facts([["run", run.id],
    ["record", run.record ? link(`${CARDS.records}/${run.id}`, "run.parquet") : ""],
    ["steps", run.record ? link(`${CARDS.records}/${run.id}`, "steps.parquet") : ""],
    ["log", run.log ? link(CARDS.logs, `${run.id}.log`) : `${CARDS.logs}/${run.id}.log (not there when the page was made)`]]));
  card.append(body);
}

function showRun() {
  const wanted = /^#run-\d+$/.test(location.hash) ? document.getElementById(location.hash.slice(1)) : null;
  for (const card of document.querySelectorAll("details.run[open]")) if (card !== wanted) card.open = false;
  if (!wanted) return;
  if (!wanted.querySelector("div")) fill(wanted, CARDS.runs[Number(wanted.id.slice(4)) - 1]);
  wanted.open = true;
  wanted.scrollTop = 0;
  wanted.querySelector("summary").focus({ preventScroll: true });
}
let opener = null; // the link that led to the run
document.addEventListener("toggle", event => { // who closes it goes on where he was
  if (event.target.matches("details.run") && !event.target.open && location.hash === `#${event.target.id}`) {
    history.replaceState(null, "", location.pathname + location.search);
    opener?.focus({ preventScroll: true });
  }
}, true);
addEventListener("keydown", event => {
  if (event.key === "Escape") for (const card of document.querySelectorAll("details.run[open]")) card.open = false;
});
addEventListener("click", event => { // the same link again, after the card was closed
  const link = event.target.closest?.('a[href^="#run-"]');
  if (link) opener = link;
  if (link && link.hash === location.hash) showRun();
});
addEventListener("pointerover", event => {
  const link = event.target.closest?.('a[href^="#run-"]');
  if (link) link.title = CARDS.runs[Number(link.hash.slice(5)) - 1]?.point ?? "";
});
addEventListener("hashchange", showRun);
showRun();

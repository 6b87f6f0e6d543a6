// The pictures of a plan, drawn from what the server computed.
import { el, svg, fill, frame, hover, linear, logarithmic, path, seconds, say, tip, timeTicks, untip } from "./common.js";

const RAMP = ["#fde725", "#b5de2b", "#6ece58", "#35b779", "#1f9e89", "#26828e", "#31688e", "#3e4989", "#482878", "#440154"];
const hex = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
function ramp(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1), i = Math.min(Math.floor(at), RAMP.length - 2);
  const [a, b] = [hex(RAMP[i]), hex(RAMP[i + 1])];
  return `rgb(${a.map((v, k) => Math.round(v + (b[k] - v) * (at - i)))})`;
}
const ratio = (value) => (value === null || value === undefined ? "target missed" : `${value < 10 ? value.toFixed(2) : Math.round(value)} × the optimum`);

// The model as a column of layers, the devices' at the bottom as in the scenario's tree; cuts can be moved.
export function drawModel(place, view, shown, optimum, move) {
  const layers = view.layers, count = layers.length, width = Math.max(240, place.clientWidth || 320);
  const row = Math.max(7, Math.min(36, Math.floor(600 / count))), height = row * count + 16;
  const most = Math.max(...layers.map((layer) => layer.activation_bits)), x0 = 0, x1 = width;
  const y = (layer) => 8 + row * (count - layer); // the lower edge of what lies above so many layers
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": "Layers by tier, from the devices up" });
  shown.tiers.forEach((tier) => {
    for (let l = tier.first; l < tier.last; l++) {
      const layer = layers[l], top = y(l + 1);
      const text = `${l + 1} ${layer.name}, on ${tier.name}\nsends ${layer.activation} up per sample\n${layer.parameters} of parameters\n${layer.work} per sample`;
      root.append(svg("g", { ...hover(text) },
        svg("rect", { x: x0, y: top + 0.5, width: x1 - x0, height: row - 1, rx: 3, fill: tier.colour, "fill-opacity": 0.32 }),
        svg("rect", { x: x0, y: top + 0.5, width: Math.max(3, (x1 - x0) * 0.98 * (layer.activation_bits / most)), height: row - 1, rx: 3, fill: tier.colour, "fill-opacity": 0.75 }),
        row >= 13 ? svg("text", { x: x0 + 8, y: top + row / 2 + 4 }, `${l + 1}  ${layer.name.slice(0, 20)}`) : null));
    }
    if (tier.last > tier.first && (tier.last - tier.first) * row >= 13) {
      root.append(svg("text", { x: x1 - 8, y: y(tier.last) + Math.min(row, 18) / 2 + 5, "text-anchor": "end", "font-weight": 700 }, tier.name));
    }
  });
  optimum.cuts.forEach((cut, m) => {
    if (cut !== shown.cuts[m]) root.append(svg("line", { class: "ghost", x1: x0, x2: x1, y1: y(cut), y2: y(cut) }));
  });
  shown.cuts.forEach((cut, m) => {
    const [below, above] = [view.plan.tiers[m].name, view.plan.tiers[m + 1].name];
    const step = (by) => move(m, Math.min(Math.max(cut + by, 1), count), true);
    const handle = svg("g", {
      class: "cut", tabindex: 0, role: "slider", id: `cut-${m}`, "aria-orientation": "vertical", "aria-valuemin": 1,
      "aria-valuemax": count - 1, "aria-valuenow": cut, "aria-label": `Cut ${m + 1}, between ${below} and ${above}`,
      "aria-valuetext": `after layer ${cut}, ${layers[cut - 1].name}`,
      onkeydown: (event) => {
        const by = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key];
        if (by) { event.preventDefault(); step(by); }
      },
      onpointerdown: (event) => {
        event.preventDefault();
        const box = root.getBoundingClientRect();
        const at = (e) => Math.min(Math.max(Math.round(count - ((e.clientY - box.top) * (height / box.height) - 8) / row), 1), count - 1);
        const go = (e) => move(m, at(e), false);
        const end = (e) => { removeEventListener("pointermove", go); removeEventListener("pointerup", end); move(m, at(e), true); };
        addEventListener("pointermove", go);
        addEventListener("pointerup", end);
      },
    },
    svg("line", { class: "bar", x1: x0, x2: x1, y1: y(cut), y2: y(cut) }),
    svg("rect", { x: x0, y: y(cut) - 11, width: x1 - x0, height: 22, fill: "transparent" }),
    svg("rect", { class: "grip", x: x1 / 2 - 34, y: y(cut) - 9, width: 68, height: 18, rx: 9 }),
    svg("text", { x: x1 / 2, y: y(cut) + 4, "text-anchor": "middle" }, `⇕ cut ${m + 1}: ${cut}`));
    root.append(handle);
  });
  const focus = document.activeElement?.id;
  fill(place, root);
  if (focus?.startsWith("cut-")) document.getElementById(focus)?.focus();
}

export function drawTiers(place, shown, setInterval_) {
  const coded = shown.tiers.some((tier) => tier.links && tier.links !== "fp32");
  const rows = [...shown.tiers].reverse().map((tier) => {
    const m = shown.tiers.indexOf(tier), [numbers, names] = tier.layers.split(/(?= \()/);
    const every = !tier.can_average ? "" : el("span", { class: "name" }, "every",
      el("input", { class: "every", id: `every-${m}`, type: "number", min: 1, max: 1000000000, value: tier.interval,
        "aria-label": `Rounds between averages of ${tier.name}`, onchange: (event) => setInterval_(m, Math.round(+event.target.value)) }),
      tier.interval === 1 ? "round" : "rounds");
    return el("tr", {}, el("td", {}, el("span", { class: "name" }, el("span", { class: "chip", style: { background: tier.colour } }), tier.count)),
      el("td", { class: "whole" }, numbers, el("span", { class: "what" }, names ?? "")), el("td", {}, every), el("td", { class: "n" }, tier.averaging),
      coded ? el("td", {}, tier.links) : null);
  });
  const focus = document.activeElement?.id;
  fill(place, el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ["machines", "layers", "averaged"].map((t) => el("th", { scope: "col" }, t)),
      el("th", { scope: "col", class: "n" }, "taking"), coded ? el("th", { scope: "col" }, "links") : null)),
    el("tbody", {}, rows))));
  if (focus?.startsWith("every-")) document.getElementById(focus)?.focus();
}

export function drawMemory(place, shown) {
  const most = Math.max(...shown.tiers.map((tier) => tier.memory_bits)) || 1;
  fill(place, shown.tiers.filter((tier) => tier.memory).reverse().map((tier) => { // a tail is counted with its devices
    const limited = tier.memory_share !== null, share = limited ? tier.memory_share : tier.memory_bits / most;
    const over = limited && share >= 1;
    const text = limited ? `${tier.memory} of ${tier.memory_limit}` : `${tier.memory}, no limit`;
    return el("div", { class: "meter" }, el("span", {}, tier.name),
      el("div", { class: "track" }, el("div", { class: over ? "fill over" : "fill", style: { width: `${Math.min(100, 100 * share)}%`, background: tier.colour, opacity: limited ? 1 : 0.4 } })),
      el("span", { class: over ? "n over" : "n" }, over ? `${text}: does not fit` : text));
  }));
}

// A waterfall: every step begins where the one before ends.
export function drawRound(place, shown, optimum) {
  const width = Math.max(280, place.clientWidth || 600), narrow = width < 480;
  const left = narrow ? 0 : 150, row = narrow ? 36 : 24, right = width - (narrow ? 4 : 104), steps = shown.steps;
  const end = Math.max(shown.round_s, optimum.round_s) || 1;
  const x = linear(0, end, left, right), height = steps.length * row + 30;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `A round takes ${shown.round}: ${steps.map((s) => `${s.label} ${s.text}`).join("; ")}` });
  for (const tick of timeTicks(0, end, false, narrow ? 3 : 5)) {
    root.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height - 20 }),
      svg("text", { class: "soft", x: x(tick), y: height - 5, "text-anchor": tick ? "middle" : "start" }, seconds(tick)));
  }
  const shade = { compute: 1, uplink: 0.72, downlink: 0.5, aggregation: 0.3 };
  steps.forEach((step, i) => {
    const y = i * row + (narrow ? 15 : 3), at = x(step.start), colour = shown.tiers[step.tier].colour;
    const wide = Math.max(2, x(step.start + step.seconds) - at), text = `${step.label}: ${step.text}`;
    root.append(svg("g", hover(text),
      svg("rect", { x: left, y: y - 2, width: right - left, height: 20, fill: "transparent" }),
      svg("rect", { x: at, y, width: wide, height: 16, rx: 3, fill: colour, "fill-opacity": shade[step.kind], stroke: colour, "stroke-dasharray": step.kind === "aggregation" ? "4 2" : null }),
      svg("text", narrow ? { x: left, y: y - 4 } : { x: left - 10, y: y + 12, "text-anchor": "end" }, narrow ? `${step.label}, ${step.text}` : step.label.slice(0, 24)),
      narrow ? null : svg("text", { class: "soft", x: width, y: y + 12, "text-anchor": "end" }, step.text)));
  });
  if (shown !== optimum) root.append(svg("line", { class: "ghost", x1: x(optimum.round_s), x2: x(optimum.round_s), y1: 0, y2: height - 20 }));
  fill(place, root);
}

export function drawLandscape(place, hint, view, own, pin) {
  const land = view.landscape, tiers = view.plan.tiers;
  if (land.error) { hint.textContent = ""; fill(place, el("p", { class: "note" }, `Not drawn: ${land.error}.`)); return; }
  if (land.curves) drawCurves(place, hint, view, own, pin);
  else {
    hint.textContent = "Each cut vector in its best intervals. Click one, or use the arrow keys and Enter, to take it.";
    const count = view.layers.length, width = Math.max(260, Math.min(place.clientWidth || 460, 520)), left = 46;
    const cell = Math.floor((width - left - 4) / (count - 1)), height = cell * (count - 1) + 44;
    const finite = land.seconds.filter((s) => s !== null), low = Math.min(...finite), high = Math.max(...finite);
    const share = (s) => (high > low ? Math.log(s / low) / Math.log(high / low) : 0);
    const px = (c) => left + (c - 1) * cell, py = (c) => (count - 1 - c) * cell + 2;
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "application", "aria-label": `Time to target over cuts 1 and 2; the best is ${view.plan.time} at cuts ${view.plan.cuts.join(" and ")}` });
    const known = new Map(land.cuts.map((cuts, i) => [cuts.join(), land.seconds[i]]));
    const words = (cuts) => {
      const s = known.get(cuts.join());
      return `cuts ${cuts.join(", ")}\n${seconds(s)}, ${ratio(s === null || s === undefined ? null : s / view.plan.objective_s)}`;
    };
    land.cuts.forEach((cuts, i) => {
      const s = land.seconds[i];
      root.append(svg("rect", { class: s === null ? "hit empty" : "hit", x: px(cuts[0]), y: py(cuts[1]), width: cell - 1, height: cell - 1, rx: 2,
        fill: s === null ? "none" : ramp(share(s)), "data-cuts": cuts.join(), onclick: () => pin(cuts), ...hover(words(cuts)) }));
    });
    const every = Math.ceil(count / 12);
    for (let c = 1; c < count; c += every) {
      root.append(svg("text", { class: "soft", x: px(c) + cell / 2, y: height - 26, "text-anchor": "middle" }, c),
        svg("text", { class: "soft", x: left - 6, y: py(c) + cell / 2 + 4, "text-anchor": "end" }, c));
    }
    root.append(svg("text", { class: "soft", x: left + (width - left) / 2, y: height - 6, "text-anchor": "middle" }, `last layer on ${tiers[0].name} (cut 1)`),
      svg("text", { class: "soft", transform: `translate(12,${(height - 44) / 2}) rotate(-90)`, "text-anchor": "middle" }, `last layer on ${tiers[1].name} (cut 2)`));
    const mark = (cuts, name) => svg("rect", { class: name, x: px(cuts[0]) - 1, y: py(cuts[1]) - 1, width: cell + 1, height: cell + 1, rx: 3, "pointer-events": "none" });
    root.append(star(px(view.plan.cuts[0]) + cell / 2 - 0.5, py(view.plan.cuts[1]) + cell / 2 - 0.5, Math.min(11, cell / 2)));
    if (own && !own.error) root.append(mark(own.cuts, "pin"));
    let at = [...(own && !own.error ? own.cuts : view.plan.cuts)], cursor = null;
    root.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (event.key === "Enter") { pin(at); return; }
      if (!by) return;
      event.preventDefault();
      const next = [at[0] + by[0], at[1] + by[1]];
      if (!known.has(next.join())) return;
      at = next;
      cursor?.remove();
      cursor = mark(at, "cursor");
      root.append(cursor);
      say(words(at));
      const box = root.getBoundingClientRect();
      tip({ clientX: box.left + px(at[0]), clientY: box.top + py(at[1]) }, words(at));
    });
    root.addEventListener("blur", () => { cursor?.remove(); untip(); });
    const focused = place.contains(document.activeElement);
    fill(place, root, el("div", { class: "ramp" }), el("div", { class: "ends" }, el("span", {}, `${seconds(low)} (best)`), el("span", {}, seconds(high))));
    if (focused) root.focus();
  }
}
function star(x, y, r) {
  const points = [...Array(10).keys()].map((i) => {
    const angle = (Math.PI * i) / 5 - Math.PI / 2, length = i % 2 ? r * 0.42 : r;
    return `${(x + length * Math.cos(angle)).toFixed(1)},${(y + length * Math.sin(angle)).toFixed(1)}`;
  });
  return svg("polygon", { class: "star", points: points.join(" "), "pointer-events": "none" });
}
const DASH = ["", "7 3", "2 3", "9 3 2 3", "4 4", "12 4"];
function timeScale(values) {
  const finite = values.filter((v) => v !== null), low = Math.min(...finite), high = Math.max(...finite);
  const log = high > 3 * low;
  return { y: log ? (a, b) => logarithmic(low / 1.05, high * 1.05, a, b) : (a, b) => linear(0, 1.1 * high, a, b), yTicks: log ? timeTicks(low, high, true) : timeTicks(0, 1.1 * high, false), yText: seconds };
}
const legend = (items) => el("div", { class: "legend" }, items.map(([name, colour, dash]) =>
  el("span", {}, el("span", { class: "swatch", style: { "border-color": colour, "border-top-style": dash ? "dashed" : "solid" } }), name)));

function drawCurves(place, hint, view, own, pin) {
  hint.textContent = "For every place of a cut, the best time with the other cuts free. Click a point to move that cut there.";
  const curves = view.landscape.curves, tiers = view.plan.tiers, count = view.layers.length;
  const { root, sx, sy } = frame({ width: Math.max(280, place.clientWidth || 460), height: 300, xLabel: "the cut lies after layer",
    x: (a, b) => linear(1, count - 1, a + 8, b), xText: String, xTicks: [...Array(count - 1).keys()].map((i) => i + 1),
    ...timeScale(curves.flatMap((c) => c.seconds)), label: "Time to target over each cut" });
  curves.forEach((curve, m) => {
    const points = curve.at.map((at, i) => [at, curve.seconds[i]]).filter(([, s]) => s !== null);
    root.append(svg("path", { class: "line", stroke: tiers[m].colour, "stroke-dasharray": DASH[m % 6], d: path(points.map(([at, s]) => [sx(at), sy(s)])) }));
    for (const [at, s] of points) {
      const cuts = (own && !own.error ? own : view.plan).cuts.map((c, k) => (k === m ? at : k < m ? Math.min(c, at - (m - k)) : Math.max(c, at + (k - m))));
      root.append(svg("circle", { class: "hit", cx: sx(at), cy: sy(s), r: 4.5, fill: tiers[m].colour, onclick: () => pin(cuts),
        ...hover(`cut ${m + 1} after layer ${at}\n${seconds(s)}, ${ratio(s / view.plan.objective_s)}`) }));
    }
    root.append(star(sx(view.plan.cuts[m]), sy(view.plan.objective_s), 9));
  });
  fill(place, legend(curves.map((_, m) => [`cut ${m + 1}: ${tiers[m].name} | ${tiers[m + 1].name}`, tiers[m].colour, DASH[m % 6]])), root);
}

export function drawIntervals(place, view, take) {
  const tiers = view.plan.tiers, curves = view.intervals;
  if (!curves.length) { fill(place, el("p", { class: "note" }, "No tier has several machines, so none is averaged.")); return; }
  const most = 8 * view.plan.objective_s, near = (s) => s !== null && s <= most; // beyond, nothing can be told apart
  const longest = Math.max(...curves.flatMap((c) => c.at.filter((_, i) => near(c.seconds[i]))), 4);
  const { root, sx, sy } = frame({ width: Math.max(280, place.clientWidth || 460), height: 430, xLabel: "rounds between averages",
    x: (a, b) => logarithmic(1, longest, a + 8, b), xText: (v) => v.toLocaleString("en"), ...timeScale(curves.flatMap((c) => c.seconds.filter(near))), label: "Time to target over the intervals" });
  curves.forEach((curve, k) => {
    const tier = tiers[curve.tier], points = curve.at.map((at, i) => [at, curve.seconds[i]]).filter(([, s]) => near(s));
    root.append(svg("path", { class: "line", stroke: tier.colour, "stroke-dasharray": DASH[k % 6], d: path(points.map(([at, s]) => [sx(at), sy(s)])) }));
    for (const [at, s] of points) {
      root.append(svg("circle", { class: "hit", cx: sx(at), cy: sy(s), r: 4, fill: tier.colour, onclick: () => take(curve.tier, at),
        ...hover(`${tier.name} averaged every ${at} rounds\n${seconds(s)}, ${ratio(s / view.plan.objective_s)}`) }));
    }
  });
  for (const { tier } of curves) {
    if (view.plan.intervals[tier] <= longest) root.append(star(sx(view.plan.intervals[tier]), sy(view.plan.objective_s), 9));
  }
  const missed = curves.filter((c) => c.seconds.some((s) => !near(s))).map((c) => tiers[c.tier].name);
  fill(place, legend(curves.map((c, k) => [tiers[c.tier].name, tiers[c.tier].colour, DASH[k % 6]])), root,
    missed.length ? el("p", { class: "hint" }, `Where a line ends, longer intervals of ${missed.join(" and ")} take 8 times as long, or miss the target.`) : null);
}

export function drawCompare(place, rows) {
  const most = Math.max(...rows.map((row) => row.slowdown ?? 1));
  fill(place, el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ["plan", "cuts", "intervals", "time to target", "against the plan"].map((t) => el("th", { scope: "col" }, t)), el("th", { scope: "col", class: "what" }, "what it is"))),
    el("tbody", {}, rows.map((row) => el("tr", {}, el("td", { class: "whole" }, el("strong", {}, row.name)), el("td", { class: "whole" }, row.cuts), el("td", { class: "whole" }, row.intervals), el("td", { class: "whole" }, row.time),
      el("td", {}, row.slowdown === null ? "–" : el("div", { class: "slow" }, el("span", {}, `${row.slowdown < 10 ? row.slowdown.toFixed(2) : Math.round(row.slowdown)} ×`),
        el("div", { class: "track" }, el("div", { class: "fill", style: { width: `${(100 * row.slowdown) / most}%`, background: row.name === "HSFL" ? "var(--good)" : "var(--accent)" } })))),
      el("td", { class: "what dim" }, row.what)))))));
}

export function drawSweep(place, field, points, values, text, tiers, take) {
  const good = points.map((p, i) => ({ ...p, x: values[i] })).filter((p) => !p.error);
  const failed = points.filter((p) => p.error);
  const note = failed.length ? el("p", { class: "hint" }, `No plan for ${failed.length} of ${points.length} values, such as ${failed[0].value}: ${failed[0].error}`) : null;
  if (!good.length) { fill(place, note); return; }
  const numeric = field.kind !== "choice" && values[0] > 0 && values.length > 1;
  const names = good.map((p) => p.x), width = Math.max(280, place.clientWidth || 900);
  const x = numeric ? (a, b) => logarithmic(values[0], values[values.length - 1], a + 10, b - 10) : (a, b) => linear(0, Math.max(1, good.length - 1), a + 30, b - 30);
  const { root, sx, sy, top, bottom } = frame({ width, height: 300, x, xText: numeric ? (v) => text(v) : (i) => String(names[i] ?? ""),
    xTicks: numeric ? undefined : good.map((_, i) => i), xLabel: field.path, ...timeScale(good.map((p) => p.seconds)), label: `Time to target over ${field.path}` });
  const at = (p, i) => sx(numeric ? p.x : i);
  const key = (p) => `${p.cuts} / ${p.intervals}`;
  good.forEach((p, i) => {
    if (i && key(p) !== key(good[i - 1])) {
      const middle = (at(p, i) + at(good[i - 1], i - 1)) / 2;
      root.append(svg("line", { class: "ghost", x1: middle, x2: middle, y1: top, y2: bottom, "stroke-opacity": 0.35 }));
    }
  });
  root.append(svg("path", { class: "line", stroke: "var(--accent)", d: path(good.map((p, i) => [at(p, i), sy(p.seconds)])) }));
  let labelled = -Infinity;
  good.forEach((p, i) => {
    const first = !i || key(p) !== key(good[i - 1]);
    root.append(svg("circle", { class: "hit", cx: at(p, i), cy: sy(p.seconds), r: first ? 5.5 : 3.5, fill: "var(--accent)", onclick: () => take(p.value),
      ...hover(`${field.path} = ${p.value}\n${p.time}, ${p.rounds} rounds\ncuts ${p.cuts}; intervals ${p.intervals}\nlimited by ${p.limit}`) }));
    if (first && at(p, i) - labelled > 86 && at(p, i) < width - 60) {
      labelled = at(p, i);
      const y = sy(p.seconds) - 12 < top + 26 ? sy(p.seconds) + 20 : sy(p.seconds) - 22;
      root.append(svg("text", { class: "halo", x: at(p, i), y, "text-anchor": "middle" }, `cuts ${p.cuts}`),
        svg("text", { class: "soft halo", x: at(p, i), y: y + 13, "text-anchor": "middle" }, `every ${p.intervals}`));
    }
  });
  fill(place, root, note);
}

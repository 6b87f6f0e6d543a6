// What both pages use: requests, elements, scales, a tooltip, and how numbers are written on axes.

export async function ask(name, data, signal) {
  const answer = await fetch(`api/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(data ?? {}),
    signal,
  });
  const kind = answer.headers.get("Content-Type") || "";
  if (!kind.includes("json")) throw new Error(await answer.text());
  return answer.json();
}

// An element: properties that begin with "on" are listeners, "style" is an object, the rest attributes.
function made(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, v] of Object.entries(value)) node.style.setProperty(name, v);
    else if (key === "value" && "value" in node) node.value = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(3)) if (child !== null && child !== undefined) node.append(child);
  return node;
}
export const el = (name, attributes, ...children) => made(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) =>
  made(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
export const byId = (id) => document.getElementById(id);

// Replace what a place holds, unless it is what it held before.
export function fill(place, ...children) {
  place.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined));
}

export function say(text) { byId("say").textContent = text; }

const UNITS = [[365 * 86400, "y", 86400, "d"], [86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
export function seconds(value) {
  if (value === null || !Number.isFinite(value)) return "never";
  if (value === 0) return "0 s";
  if (value < 1) {
    for (const [unit, scale] of [["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]]) {
      if (value >= scale) return `${digits(value / scale)} ${unit}`;
    }
    return `${digits(value)} s`;
  }
  for (const [big, name, small, rest] of UNITS) {
    const whole = Math.round(value / small);
    if (whole >= big / small) {
      const left = whole % (big / small);
      return `${Math.floor(whole / (big / small)).toLocaleString("en")} ${name}${left ? ` ${left} ${rest}` : ""}`;
    }
  }
  return `${digits(value)} s`;
}
export const digits = (value, count = 3) => String(+(+value).toPrecision(count));
export function size(bytes) {
  for (const [scale, unit] of [[1e15, "PB"], [1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (bytes >= scale) return `${digits(bytes / scale)} ${unit}`;
  }
  return `${digits(bytes)} B`;
}

export function linear(low, high, from, to) {
  const span = high - low || 1;
  const scale = (value) => from + ((value - low) / span) * (to - from);
  scale.back = (at) => low + ((at - from) / (to - from)) * span;
  scale.ticks = (count = 5) => ticks(low, high, count);
  return scale;
}
export function logarithmic(low, high, from, to) {
  const inner = linear(Math.log(low), Math.log(high), from, to);
  const scale = (value) => inner(Math.log(value));
  scale.back = (at) => Math.exp(inner.back(at));
  scale.ticks = (count = 5) => {
    if (high / low < 4) return ticks(low, high, count).filter((t) => t >= low && t <= high && t > 0);
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const step of [1, 2, 5]) {
        const tick = step * 10 ** power;
        if (tick >= low * 0.999 && tick <= high * 1.001) found.push(tick);
      }
    }
    const tens = found.filter((t) => Math.abs(Math.log10(t) - Math.round(Math.log10(t))) < 1e-9);
    return found.length > count * 1.6 && tens.length > 1 ? tens : found;
  };
  return scale;
}
function ticks(low, high, count) {
  const rough = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(+(k * step).toPrecision(12));
  return found;
}
// Ticks of a time axis at durations in which people count.
const CLOCK = [1, 2, 5, 10, 15, 30];
const DURATIONS = [
  ...[-9, -8, -7, -6, -5, -4, -3, -2, -1].flatMap((p) => [1, 2, 5].map((s) => +(s * 10 ** p).toPrecision(3))),
  ...CLOCK, ...CLOCK.map((s) => s * 60), 3600, 7200, 21600, 43200,
  ...[1, 2, 5, 10, 20, 50, 100, 200].map((d) => d * 86400),
  ...[0, 1, 2, 3].flatMap((p) => [1, 2, 5].map((s) => s * 10 ** p * 365 * 86400)),
];
export function timeTicks(low, high, log, count = 6) {
  if (log) {
    const found = DURATIONS.filter((d) => d >= low && d <= high);
    if (found.length >= 2) {
      const every = Math.ceil(found.length / count);
      return found.filter((_, i) => i % every === 0);
    }
  }
  const step = DURATIONS.find((d) => d * count >= high - low) ?? (high - low) / count;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); k++) found.push(k * step);
  return found.length ? found : [low];
}

// A chart's frame: axes with ticks, and the scales that place things in it.
export function frame({ width, height, x, y, xLabel, yLabel, xText, yText, xTicks, yTicks, left = 64, label }) {
  const bottom = height - (xLabel ? 42 : 26), right = width - 12, top = 10;
  const sx = x(left, right), sy = y(bottom, top);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": label });
  for (const tick of yTicks ?? sy.ticks(5)) {
    const at = sy(tick);
    if (at < top - 1 || at > bottom + 1) continue;
    root.append(svg("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }),
      svg("text", { class: "soft", x: left - 8, y: at + 4, "text-anchor": "end" }, yText(tick)));
  }
  let last = -Infinity;
  for (const tick of xTicks ?? sx.ticks(Math.max(3, Math.floor((right - left) / 90)))) {
    const at = sx(tick), text = xText(tick);
    if (at < left - 1 || at > right + 1 || at - last < 7 * text.length + 8) continue;
    last = at;
    root.append(svg("text", { class: "soft", x: at, y: bottom + 17, "text-anchor": "middle" }, text));
  }
  root.append(svg("line", { class: "grid", x1: left, x2: right, y1: bottom, y2: bottom }));
  if (xLabel) root.append(svg("text", { class: "soft", x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, xLabel));
  if (yLabel) root.append(svg("text", { class: "soft", x: left, y: top - 1 }, yLabel));
  return { root, sx, sy, left, right, top, bottom };
}
export const path = (points) =>
  points.map(([x, y], i) => `${i && points[i - 1] ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

export function tip(event, text) {
  const box = byId("tip");
  box.textContent = text;
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const x = Math.min(event.clientX + 14, innerWidth - width - 8);
  const y = event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18;
  box.style.left = `${Math.max(8, x)}px`;
  box.style.top = `${Math.max(8, y)}px`;
}
export function untip() { byId("tip").hidden = true; }
export const hover = (text) => ({ onpointermove: (event) => tip(event, text), onpointerleave: untip });

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied`);
    return true;
  } catch {
    window.prompt(`${what}: copy it from here`, text);
    return false;
  }
}

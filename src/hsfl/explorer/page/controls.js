// Fields of the scenario: text as one writes it, sliders for what is a number, the planner's sentence beside what is wrong.
import { el, digits, fill } from "./common.js";

const NAMES = {
  entities: "machines", fed_uplink: "fed uplink", fed_downlink: "fed downlink", batch_size: "batch size",
  learning_rate: "learning rate", initial_gap: "initial gap", code: "code of links",
};
const TITLES = { training: "Training", participation: "Who takes part", convergence: "Target and bound" };
const UNIT = { compute: ["FLOPS", 1], rate: ["bps", 1], size: ["B", 8] };
const STEPS = 1000;
const title = (field) => NAMES[field.name] || field.name.replaceAll("_", " ");

function written(kind, value) {
  if (kind === "whole") return String(Math.round(value));
  if (!UNIT[kind]) return digits(value);
  const [unit, bits] = UNIT[kind], plain = value / bits;
  for (const [scale, prefix] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]) {
    if (plain >= scale * 0.9995 || scale === 1) return `${digits(plain / scale)} ${prefix}${unit}`;
  }
}
// The number that a slider stands for, and the field with that number instead, in the form it was written in.
export function middle(field) {
  const n = field.numbers;
  return field.form === "uniform" || field.form === "list" ? n.reduce((a, b) => a + b, 0) / n.length : n[0];
}
export function moved(field, value) {
  const factor = value / middle(field), quoted = (n) => `"${written(field.kind, n)}"`;
  const [first, second] = field.numbers;
  if (field.form === "uniform" || field.form === "normal") {
    return `{ ${field.form} = [${quoted(first * factor)}, ${quoted(second * factor)}] }`;
  }
  if (field.form === "lognormal") return `{ lognormal = [${quoted(value)}, ${second}] }`;
  if (field.form === "list") return `[${field.numbers.map((n) => quoted(n * factor)).join(", ")}]`;
  return written(field.kind, value);
}
// What a field says in few words; while it is edited, it is shown as it is written.
function brief(field) {
  const [first, second] = field.numbers.map((n) => written(field.kind, n));
  if (field.form === "uniform") {
    const [a, unit] = first.split(" "), [b, other] = second.split(" ");
    return unit === other ? `${a} – ${b} ${unit}` : `${first} – ${second}`;
  }
  if (field.form === "normal") return `${first} ± ${second}`;
  if (field.form === "lognormal") return `${first}, spread ${field.numbers[1]}`;
  if (field.form === "list") return field.numbers.length ? `${field.numbers.length} values` : "a long list";
  return field.text;
}
// Where a slider begins and ends: around what the file says, within the limits of the schema.
export function range(base) {
  const at = base.numbers.length ? middle(base) : 0;
  if (base.name === "slack" || at === 0) return { low: 0, high: Math.max(1, 3 * at), log: false };
  const wide = base.kind === "whole" ? 30 : 100;
  const low = Math.max(at / wide, base.low ?? 0, base.kind === "whole" ? 1 : 0);
  return { low, high: Math.min(Math.max(at * wide, base.kind === "whole" ? 64 : 0), base.high ?? Infinity), log: true };
}
const place = (r, v) => STEPS * (r.log ? Math.log(v / r.low) / Math.log(r.high / r.low) : (v - r.low) / (r.high - r.low));
const value = (r, p) => (r.log ? r.low * (r.high / r.low) ** (p / STEPS) : r.low + ((r.high - r.low) * p) / STEPS);

export class Controls {
  // `change(path, text, done)` hears of every change; `done` is false while a slider moves.
  constructor(form, change, option) {
    Object.assign(this, { form, change, option, shown: "", parts: new Map() });
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  show(fields, base, tiers, changes, options) {
    this.fields = new Map(fields.map((field) => [field.path, field]));
    this.base = new Map(base.map((field) => [field.path, field]));
    const shown = JSON.stringify(fields.map((f) => [f.path, f.kind, f.choices, !!f.numbers.length]));
    if (shown !== this.shown) this.#build(fields, tiers);
    this.shown = shown;
    for (const field of fields) this.#update(field, field.path in changes);
    for (const [name, box] of Object.entries(this.boxes)) box.checked = options[name];
    this.wrong(null);
  }

  wrong(problem) {
    for (const [path, part] of this.parts) {
      const text = problem && problem.field === path ? problem.error : "";
      part.wrong.textContent = text;
      part.wrong.hidden = !text;
      part.box.classList.toggle("bad", !!text);
      part.input.setAttribute("aria-invalid", String(!!text));
    }
    return !!problem && this.parts.has(problem.field);
  }

  #build(fields, tiers) {
    const focus = document.activeElement?.id;
    this.parts.clear();
    const groups = [...new Set(fields.map((field) => field.group))];
    const colour = new Map(tiers.map((tier) => [tier.name, tier.colour]));
    fill(this.form, groups.map((group) => {
      const own = fields.filter((field) => field.group === group);
      const chip = colour.has(group) ? el("span", { class: "chip", style: { background: colour.get(group) } }) : null;
      const set = el("fieldset", colour.has(group) ? { style: { "--tier": colour.get(group) } } : {},
        el("legend", {}, chip, TITLES[group] || group), own.map((field) => this.#field(field)));
      if (group === "convergence") set.append(this.#target(own));
      return set;
    }), this.#options());
    if (focus) document.getElementById(focus)?.focus();
  }

  #field(field) {
    const id = `f-${field.path}`, about = `${field.group} ${title(field)}`;
    const wrong = el("p", { class: "wrong", id: `${id}-wrong`, role: "alert", hidden: true });
    const described = { "aria-describedby": `${id}-about ${id}-wrong` };
    const input = field.kind === "choice"
      ? el("select", { id, ...described, onchange: () => this.change(field.path, input.value, true) },
        field.choices.map((choice) => el("option", { value: choice }, choice)))
      : el("input", { id, type: "text", spellcheck: "false", ...described, placeholder: this.#hint(field),
        onfocus: () => { input.value = this.fields.get(field.path).text; },
        onblur: () => { if (this.parts.get(field.path).wrong.hidden) input.value = brief(this.fields.get(field.path)); },
        onchange: () => this.change(field.path, input.value.trim(), true) });
    let slider = null;
    if (field.kind !== "choice" && field.numbers.length) {
      const text = () => {
        const field_ = this.fields.get(field.path), r = range(this.base.get(field.path) ?? field_);
        return moved(field_, value(r, +slider.value));
      };
      slider = el("input", { type: "range", min: 0, max: STEPS, step: 1, "aria-label": `${about}, slider`,
        oninput: () => this.change(field.path, text(), false),
        onchange: () => this.change(field.path, text(), true) });
    }
    const back = el("button", { class: "back", type: "button", title: "As the scenario has it", hidden: true,
      "aria-label": `${about}: as the scenario has it`, onclick: () => this.change(field.path, null, true) }, "↺");
    const box = el("div", { class: "field", "data-path": field.path },
      el("label", { for: id, title: field.description }, el("span", { class: "hidden" }, `${field.group} `), title(field)), input, back, slider,
      el("p", { class: "hidden", id: `${id}-about` }, field.description), wrong);
    this.parts.set(field.path, { box, input, slider, back, wrong });
    return box;
  }

  #hint(field) { return field.name === "memory" ? "no limit" : field.default; }

  #update(field, changed) {
    const { box, input, slider, back } = this.parts.get(field.path);
    box.classList.toggle("changed", changed);
    back.hidden = !changed;
    if (document.activeElement !== input || field.kind === "choice") input.value = field.kind === "choice" ? field.text || field.default : brief(field);
    if (slider) {
      if (document.activeElement !== slider) {
        slider.value = place(range(this.base.get(field.path) ?? field), middle(field));
      }
      slider.setAttribute("aria-valuetext", field.text);
    }
  }

  // The target is given as such, or by rounds.
  #target(own) {
    const byRounds = own.some((field) => field.name === "rounds");
    const [path, text] = byRounds ? ["convergence.target", "Give the target itself"] : ["convergence.rounds", "Give the target by rounds"];
    return el("button", { class: "switch", type: "button", onclick: () => this.option("target", path) }, text);
  }

  #options() {
    this.boxes = {};
    const choices = [
      ["allow_empty_tiers", "Tiers above the devices may hold no layer and only relay"],
      ["optimize_learning_rate", "Choose the learning rate too"],
    ];
    return el("fieldset", {}, el("legend", {}, "Planner"), choices.map(([name, text]) => {
      this.boxes[name] = el("input", { type: "checkbox", onchange: (event) => this.option(name, event.target.checked) });
      return el("label", { class: "check" }, this.boxes[name], text);
    }));
  }
}

// The values of a sweep over a field: from a tenth to ten times what it is, within its limits; or all choices.
export function swept(field) {
  if (field.kind === "choice") return field.choices.map((choice) => [choice, choice]);
  const at = middle(field), count = 25, found = [];
  for (let i = 0; i < count; i++) {
    const factor = 10 ** (-1 + (2 * i) / (count - 1));
    let v = at ? at * factor : i / 10;
    v = Math.min(Math.max(v, field.low ?? 0), field.high ?? Infinity);
    if (field.kind === "whole") v = Math.max(1, Math.round(v));
    if (!found.length || v > found[found.length - 1]) found.push(v);
  }
  return found.map((v) => [v, moved(field, v || 0)]);
}
export const sweepable = (field) => field.kind === "choice" || field.numbers.length > 0;
export const shownValue = (field, v) => (field.kind === "choice" ? v : written(field.kind, v));

// The plan page: what a window shows is its state, which every request carries and the link holds.
import { ask, byId, copy, el, fill, say } from "./common.js";
import { Controls, middle, shownValue, sweepable, swept } from "./controls.js";
import { drawCompare, drawIntervals, drawLandscape, drawMemory, drawModel, drawRound, drawSweep, drawTiers } from "./pictures.js";

const EMPTY = { scenario: "", changes: {}, own: null, allow_empty_tiers: false, optimize_learning_rate: false };
const NEVER = 1000000000;

let state = structuredClone(EMPTY), undone = [], done = [], saved = state;
let view = null, asked = null, asking = false, later = null;
let controls, known = [];

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const next = (changes) => ({ ...structuredClone(state), ...changes });

// Take a new state; `whole` says that it is one step to undo.
function take(changed, whole = true) {
  state = changed;
  if (whole && !same(saved, state)) {
    done.push(saved);
    undone = [];
    saved = state;
    history.replaceState(null, "", same(state, EMPTY) ? location.pathname : `#${encodeURIComponent(JSON.stringify(state))}`);
  }
  buttons();
  request();
}
function step(from, to) {
  if (!from.length) return;
  to.push(saved);
  saved = state = from.pop();
  history.replaceState(null, "", same(state, EMPTY) ? location.pathname : `#${encodeURIComponent(JSON.stringify(state))}`);
  byId("scenario").value = state.scenario;
  document.activeElement?.blur();
  buttons();
  request();
}
function buttons() {
  byId("undo").disabled = !done.length;
  byId("redo").disabled = !undone.length;
  byId("reset").disabled = same({ ...state, scenario: "" }, EMPTY);
}

// One request at a time: while one is on its way, the newest state waits.
async function request() {
  clearTimeout(later);
  waiting?.abort();
  document.body.dataset.settled = "";
  if (asking) { asked = state; return; }
  asking = true;
  asked = null;
  const sent = state;
  try {
    const answer = await ask("plan", sent);
    byId("gone").hidden = true;
    if (answer.error) { known = answer.base ?? known; problem(answer); }
    else { view = answer; known = view.base; problem(null); show(sent); }
  } catch {
    byId("gone").textContent = "hsfl explore no longer answers: start it again, and open the address that it prints.";
    byId("gone").hidden = false;
  }
  asking = false;
  document.body.dataset.settled = asked ? "" : JSON.stringify(sent);
  if (asked) request();
  else later = setTimeout(settled, 400);
}
function problem(found) {
  if (found?.fields && !view) controls.show(found.fields, found.base, found.tiers, state.changes, state);
  const beside = controls.wrong(found);
  byId("problem").hidden = !found || beside;
  if (found && !beside) byId("problem").textContent = found.error;
  byId("main").classList.toggle("busy", !!found);
  if (found) say(found.error);
}

function show(sent) {
  const own = view.own && !view.own.error ? view.own : null, shown = own ?? view.plan, plan = view.plan;
  document.title = `${view.scenario}: ${plan.time} – hsfl explore`;
  byId("system").textContent = `${view.scenario}: ${view.system} · ${view.model}`;
  byId("time").textContent = plan.time;
  byId("summary").textContent = `${plan.rounds_text} of ${plan.round} on average · cuts ${plan.cuts.join(", ")} · intervals ${plan.intervals.map((i) => (i >= NEVER ? "never" : i)).join(", ")}`
    + (sent.optimize_learning_rate ? ` · learning rate ${plan.learning_rate.toPrecision(3)}` : "");
  byId("claim").textContent = view.claim.split(" (")[0];
  byId("claim").className = view.status === "optimal" ? "badge" : "badge bounded";
  byId("caveat").textContent = [view.caveat, ...view.notes].filter(Boolean).join(" ");
  byId("mine").hidden = !view.own;
  if (view.own) byId("mine-text").textContent = own ? mine(own) : `Your plan: ${view.own.error}`;
  byId("client").textContent = `${own ? "Your plan. " : ""}${shown.round} on average, ${shown.client}; averages are spread over the rounds between them.`;
  byId("limits").textContent = shown.limits_text;
  controls.show(view.fields, view.base, plan.tiers, sent.changes, sent);
  pictures();
  byId("command-plan").textContent = view.commands.plan;
  byId("command-train").textContent = view.commands.train;
  byId("command-hint").textContent = view.commands.save_first === "True" ? "Save scenario.toml first: a field was taken away, or the scenario is not a file." : "";
  sweepFields();
}
function mine(own) {
  const misses = own.missing.length ? ` It does not fit the memory of ${own.missing.join(" and ")}.` : "";
  const cost = own.slowdown === null ? "never reaches the target" : `takes ${own.time}, ${own.slowdown.toFixed(own.slowdown < 10 ? 3 : 0)} × the optimum's time`;
  return `Your plan, cuts ${own.cuts.join(", ")} and intervals ${own.intervals.join(", ")}${own.best_intervals ? " (the best for them)" : ""}, ${cost}.${misses}`;
}
function pictures() {
  if (!view) return;
  const own = view.own && !view.own.error ? view.own : null, shown = own ?? view.plan;
  drawModel(byId("model"), view, shown, view.plan, moveCut);
  drawTiers(byId("tiers"), shown, setEvery);
  drawMemory(byId("memory"), shown);
  drawRound(byId("round"), shown, view.plan);
  drawLandscape(byId("landscape"), byId("landscape-hint"), view, view.own, pin);
  drawIntervals(byId("intervals"), view, setEvery);
}

const current = () => (view.own && !view.own.error ? view.own : view.plan);
function ownPlan(cuts, intervals) {
  const best = same(cuts, view.plan.cuts) && (intervals === null || same(intervals, view.plan.intervals));
  return best ? null : { cuts, intervals };
}
function moveCut(m, at, whole) {
  const cuts = [...(state.own?.cuts ?? view.plan.cuts)], gap = state.allow_empty_tiers ? 0 : 1, L = view.layers.length;
  cuts[m] = Math.min(Math.max(at, 1 + gap * m), L - gap * (cuts.length - m));
  for (let k = m + 1; k < cuts.length; k++) cuts[k] = Math.max(cuts[k], cuts[k - 1] + gap);
  for (let k = m - 1; k >= 0; k--) cuts[k] = Math.min(cuts[k], cuts[k + 1] - gap);
  take(next({ own: ownPlan(cuts, state.own?.intervals ?? null) }), whole);
}
function setEvery(m, rounds) {
  const intervals = [...current().intervals];
  intervals[m] = Math.min(Math.max(rounds || 1, 1), NEVER);
  take(next({ own: ownPlan([...current().cuts], intervals) }));
}
function pin(cuts) { take(next({ own: ownPlan([...cuts], null) })); }

function change(path, text, whole) {
  const changes = { ...state.changes };
  delete changes[path]; // what is written last comes last
  const base = known.find((field) => field.path === path);
  const chosen = base?.kind === "choice" && !base.text ? base.default : base?.text;
  if (text !== null && text !== chosen) changes[path] = text;
  take(next({ changes }), whole);
}
function option(name, value) {
  if (name !== "target") { take(next({ [name]: value })); return; }
  const text = value === "convergence.target" ? String(+(view?.plan.target ?? 1).toPrecision(6)) : String(view?.plan.rounds ?? 1000);
  const changes = { ...state.changes };
  for (const other of ["target", "rounds", "slack"]) delete changes[`convergence.${other}`];
  changes[value] = text;
  take(next({ changes }));
}

// What takes longer is asked for when nothing moves any more, and only where it can be seen.
const seen = { compare: false, sweep: false }, fresh = { compare: "", sweep: "" };
let waiting = null;
function settled() {
  if (view && !byId("main").classList.contains("busy")) Promise.resolve(compare()).then(sweep);
}
async function slow(name, key, data, draw) {
  if (!seen[name] || fresh[name] === key) return;
  byId(name).classList.add("busy");
  waiting = new AbortController();
  const answer = await ask(name, data, waiting.signal).catch(() => null);
  if (!answer) return;
  byId(name).classList.remove("busy");
  fresh[name] = key;
  if (answer.error) fill(byId(name), el("p", { class: "note" }, answer.error));
  else draw(answer);
}
const compare = () => slow("compare", JSON.stringify({ ...state, own: null }), { ...state, own: null }, (answer) => drawCompare(byId("compare"), answer.rows));

function sweepFields() {
  const select = byId("sweep-field"), fields = view.fields.filter(sweepable), chosen = select.value;
  const paths = fields.map((field) => field.path);
  if (!same(paths, [...select.options].map((option_) => option_.value))) {
    fill(select, paths.map((path) => el("option", { value: path }, path)));
    const first = view.fields.find((field) => field.name === "uplink")?.path;
    select.value = paths.includes(chosen) ? chosen : (first ?? paths[0]);
  }
}
async function sweep() {
  const field = view?.fields.find((f) => f.path === byId("sweep-field").value);
  if (!field) return;
  const sent = { ...state, own: null }, pairs = swept(field);
  await slow("sweep", JSON.stringify([sent, field.path]), { ...sent, field: field.path, values: pairs.map(([, text]) => text) }, (answer) => {
    byId("sweep-hint").textContent = field.kind === "choice" ? "" : `from a tenth to ten times ${shownValue(field, middle(field))}; dashed lines: the plan changes; click a point to take it`;
    last = () => drawSweep(byId("sweep"), field, answer.points, pairs.map(([v]) => v), (v) => shownValue(field, v), view.plan.tiers, (text) => change(field.path, text, true));
    last();
  });
}
let last = () => {};

async function save() {
  const answer = await ask("file", state);
  if (answer.error) { problem(answer); return; }
  const link = el("a", { href: URL.createObjectURL(new Blob([answer.text], { type: "application/toml" })), download: answer.name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  if (answer.note) byId("command-hint").textContent = answer.note;
  say(`${answer.name} saved where your browser puts downloads. ${answer.note}`);
}

function fromLink() {
  try {
    const found = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    if (found && typeof found.changes === "object") return { ...structuredClone(EMPTY), ...found };
  } catch { /* no state in the address */ }
  return structuredClone(EMPTY);
}

export function startPlanning(plans) {
  controls = new Controls(byId("fields"), change, option);
  if (matchMedia("(max-width: 760px)").matches) byId("panel").open = false;
  fill(byId("scenario"), el("option", { value: "" }, plans.given), plans.scenarios.map((name) => el("option", { value: name }, name)));
  state = saved = fromLink();
  byId("scenario").value = state.scenario;
  byId("scenario").addEventListener("change", (event) => take({ ...structuredClone(EMPTY), scenario: event.target.value }));
  byId("undo").addEventListener("click", () => step(done, undone));
  byId("redo").addEventListener("click", () => step(undone, done));
  byId("reset").addEventListener("click", () => take({ ...structuredClone(EMPTY), scenario: state.scenario }));
  byId("link").addEventListener("click", () => copy(location.href, "Link"));
  byId("save").addEventListener("click", save);
  byId("mine-reset").addEventListener("click", () => take(next({ own: null })));
  byId("sweep-field").addEventListener("change", sweep);
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => copy(byId(button.dataset.copy).textContent, "Command"));
  }
  addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z" || event.target.matches("input[type=text], input[type=number]")) return;
    event.preventDefault();
    if (event.shiftKey) step(undone, done);
    else step(done, undone);
  });
  addEventListener("hashchange", () => { const found = fromLink(); if (!same(found, state)) take(found); });
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.target.id] = entry.isIntersecting;
    if (!asking) { clearTimeout(later); later = setTimeout(settled, 150); }
  }, { rootMargin: "200px" });
  watcher.observe(byId("compare"));
  watcher.observe(byId("sweep"));
  let width = innerWidth;
  addEventListener("resize", () => { if (width !== innerWidth) { width = innerWidth; pictures(); last(); } });
  buttons();
  request();
}
export function redrawPlan() {
  pictures();
  last();
}

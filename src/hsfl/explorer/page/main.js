// Which page is shown: the plan, the runs, or one of both.
import { ask, byId, el, fill } from "./common.js";
import { redrawPlan, startPlanning } from "./plan.js";
import { redrawRuns, startWatching } from "./watch.js";

function show(name) {
  byId("planning").hidden = byId("actions").hidden = byId("pick").hidden = name !== "plan";
  byId("watching").hidden = name !== "runs";
  for (const tab of byId("tabs").children) {
    if (tab.dataset.page === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  if (name === "plan") redrawPlan();
  else redrawRuns();
}

const start = await ask("start");
const pages = [...(start.plans ? [["plan", "Plan"]] : []), ...(start.runs ? [["runs", "Runs"]] : [])];
fill(byId("tabs"), pages.map(([name, title]) => el("button", { type: "button", "data-page": name, onclick: () => show(name) }, title)));
byId("tabs").hidden = pages.length < 2;
if (start.plans) startPlanning(start.plans);
if (start.runs) startWatching();
show(pages[0][0]);

// Which page is shown: the plan, the runs, or both.
import { ask, byId, el, fill } from "./common.js";
import { startPlanning } from "./plan.js";

const start = await ask("start");
if (start.plans) startPlanning(start.plans);

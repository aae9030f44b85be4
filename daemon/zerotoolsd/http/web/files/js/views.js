// The views that are read after the first one.

export { EventsView } from "./events_view.js";
export { JobView } from "./job_view.js";
export { MachineView } from "./machine_view.js";
export { SubmitView } from "./submit_view.js";

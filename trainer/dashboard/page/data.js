// Data of the page: embedded responses of a report, or responses of the server.

const embedded = (() => {
  const element = document.getElementById("responses");
  return element ? JSON.parse(element.textContent) : null;
})();

// The JSON at a path. Rejects with a message for people.
async function load(path) {
  if (embedded) {
    if (path in embedded) return embedded[path];
    throw new Error("the report does not contain these data");
  }
  let response;
  try {
    response = await fetch(path, { cache: "no-store" });
  } catch {
    throw new Error("the server of this page does not answer: is `rljob dashboard` running?");
  }
  const body = await response.json();
  if (!response.ok) throw new Error(body.error);
  return body;
}

// Points [step, value] of a column of a run.
function column(run, name) {
  const steps = run.columns.step;
  const values = run.columns[name];
  if (!values) return [];
  const points = values.map((value, index) => [steps[index], value]);
  return points.filter((point) => point[1] !== null);
}

// Names of the suites of a run's evaluations; one empty name without suites.
function suites(run) {
  const names = new Set(run.evaluations.flatMap((it) => Object.keys(it.suites ?? {})));
  return names.size > 0 ? [...names].sort() : [""];
}

// The evaluations of a suite.
function ofSuite(run, suite) {
  const own = run.evaluations.map((it) => (suite ? it.suites?.[suite] : it));
  return own.filter((it) => it !== undefined);
}

// Points of a value of the evaluations of a run.
function evaluations(run, value, suite = "") {
  const points = ofSuite(run, suite).map((evaluation) => [evaluation.step, value(evaluation)]);
  return points.filter((point) => point[1] !== null && point[1] !== undefined);
}

// Names of the rewards of a run, if there are several.
function rewards(run) {
  const names = Object.keys(run.columns).filter((name) => name.startsWith("reward/"));
  return names.length > 1 ? names : [];
}

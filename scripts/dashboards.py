#!/usr/bin/env python3
"""Writes the Grafana dashboards of the chart (`make dashboards`).

usage: dashboards.py FOLDER

Dashboards: `fleet` (all jobs of a namespace or a cluster), `job` (one job: its run, learners and
engines) and `operator`. A panel names its queries once, here; tests run every query in a Prometheus
that scrapes an operator, a coordinator and an engine.
"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT = 24, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
NAMESPACE = 'namespace=~"$namespace"'
# Of the operator's metrics, except those of jobs.
OWN = f"{{{NAMESPACE}}}"
JOB = 'namespace="$namespace", name="$job"'
# Labels of a PodMonitor with `podTargetLabels: [rljob.dev/job]`.
RUN = 'namespace="$namespace", rljob_dev_job="$job"'


def panel(title, unit, description, *queries, kind="timeseries", columns=2):
    return dict(
        title=title,
        unit=unit,
        description=description,
        queries=queries,
        kind=kind,
        width=WIDTH // columns,
    )


def number(title, unit, description, *queries, columns=4):
    return panel(title, unit, description, *queries, kind="stat", columns=columns)


def succeeded(reason):
    """Number of jobs with this reason of `Succeeded`."""
    return (f'sum(rljob_job_status_condition{{{NAMESPACE}, type="Succeeded", reason="{reason}"}}) '
            f'or vector(0)')


FLEET = [
    number("Running", "none", "Jobs in training.", (succeeded("Running"), ""), columns=5),
    number("Waiting", "none", "Jobs that start, restart or wait for something.",
           (f'sum(rljob_job_status_condition{{{NAMESPACE}, type="Ready", status="False"}} '
            f'unless on (namespace, name) (rljob_job_status_condition{{type="Succeeded", '
            f'status="False"}} == 1 or rljob_job_status_condition{{type="Stalled", '
            f'status="True"}} == 1)) or vector(0)', ""), columns=5),
    number("Suspended", "none", "By their users.", (succeeded("Suspended"), ""), columns=5),
    number("Stalled", "none", "Jobs that need a person.",
           (f'sum(rljob_job_status_condition{{{NAMESPACE}, type="Stalled", status="True"}}) '
            f'or vector(0)', ""), columns=5),
    number("Restarts in a day", "none", "Restarts of learners, counted or not.",
           (f'sum(increase(rljob_job_restarts_total{{{NAMESPACE}}}[1d])) or vector(0)', ""),
           columns=5),
    panel("Jobs by reason", "none", "The STATUS column of `kubectl get rljobs`.",
          (f'sum by (reason) (rljob_job_status_condition{{{NAMESPACE}, type="Succeeded"}})',
           "{{reason}}")),
    panel("Jobs that are not ready", "none", "By reason of the condition Ready.",
          (f'sum by (reason) (rljob_job_status_condition{{{NAMESPACE}, type="Ready", '
           f'status="False"}}) or on () vector(0)', "{{reason}}")),
    panel("Pods of jobs", "none", "Ready and desired pods by role.",
          (f'sum by (role) (rljob_job_replicas_ready{{{NAMESPACE}}})', "{{role}} ready"),
          (f'sum by (role) (rljob_job_replicas_desired{{{NAMESPACE}}})', "{{role}} desired")),
    panel("Age of the newest checkpoint", "s", "Steps since then are repeated after a failure.",
          (f'time() - rljob_job_checkpoint_timestamp_seconds{{{NAMESPACE}}}',
           "{{namespace}}/{{name}}")),
]

OPERATOR = [
    number("Leaders", "none", "1 while an operator leads.", (f"sum(rljob_leader{OWN})", "")),
    number("Watches that fail", "none", "Of the leader.",
           (f"count(rljob_watch_healthy{OWN} == 0) or vector(0)", "")),
    number("Largest lag of weights", "none", "Steps by which an engine is behind its trainer.",
           (f"max(rljob_weight_version_lag_steps_max{OWN})", "")),
    number("Oldest checkpoint", "s", "Of the running jobs.",
           (f"max(rljob_checkpoint_age_seconds_max{OWN})", "")),
    panel("Reconciliations", "ops", "Per second.",
          (f"sum(rate(rljob_reconcile_duration_seconds_count{OWN}[$__rate_interval]))",
           "all"),
          (f"sum by (variant) (rate(rljob_reconcile_errors_total{OWN}[$__rate_interval])) "
           "or on () vector(0)", "failed {{variant}}")),
    panel("Duration of a reconciliation", "s", "Quantiles.",
          *((f"histogram_quantile({quantile}, sum by (le) "
             f"(rate(rljob_reconcile_duration_seconds_bucket{OWN}[$__rate_interval])))",
             f"p{name}")
            for quantile, name in ((0.5, 50), (0.99, 99)))),
    panel("API requests", "reqps", "By verb; an idle reconciliation sends none.",
          (f"sum by (verb) (rate(rljob_api_requests_total{OWN}[$__rate_interval]))",
           "{{verb}}"),
          (f"sum(rate(rljob_status_writes_total{OWN}[$__rate_interval]))",
           "status writes")),
    panel("Incidents and restarts", "none", "Within an hour, by reason.",
          (f"sum by (reason) (increase(rljob_incidents_total{OWN}[1h])) or on () vector(0)",
           "incident {{reason}}"),
          (f"sum by (reason) (increase(rljob_restarts_total{OWN}[1h])) or on () vector(0)",
           "restart {{reason}}")),
]

RUNNING = [
    number("Step", "none", "Steps done.", (f"rljob_step{{{RUN}}}", "")),
    number("Reward", "none", "Mean of the newest step.", (f"rljob_reward{{{RUN}}}", "")),
    number("Restarts", "none", "Of the learners, and of groups of the trainer.",
           (f"rljob_job_restarts_total{{{JOB}}}", "learners"),
           (f"rljob_job_group_restarts_total{{{JOB}}} or on () vector(0)", "group {{group}}")),
    number("Checkpoint", "s", "Age of the newest one.",
           (f"time() - rljob_job_checkpoint_timestamp_seconds{{{JOB}}}", "")),
    panel("Reward", "none", "Mean of a step's samples; of held-out prompts in evaluations.",
          (f"rljob_reward{{{RUN}}}", "samples"),
          (f"rljob_evaluation_sampled{{{RUN}}}", "evaluation, sampled"),
          (f"rljob_evaluation_greedy{{{RUN}}}", "evaluation, greedy")),
    panel("Time of learners", "percentunit", "Share of the time by phase.",
          (f"rate(rljob_learner_seconds_total{{{RUN}}}[$__rate_interval])", "{{phase}}")),
    panel("Calls of learners", "percentunit", "Share of the time by call of the dataflow.",
          (f"rate(rljob_learner_call_seconds_total{{{RUN}}}[$__rate_interval])", "{{call}}")),
    panel("Rollouts and weight sync", "percentunit",
          "Share of the time; rollouts that run ahead may overlap.",
          (f"rate(rljob_rollout_seconds_total{{{RUN}}}[$__rate_interval])", "rollouts"),
          (f"rate(rljob_weight_sync_seconds_total{{{RUN}}}[$__rate_interval])", "weight sync")),
    panel("Speed of learners", "none", "Tokens of batches per second of a step.",
          (f"rljob_tokens_per_second{{{RUN}}}", "all"),
          (f"rljob_tokens_per_second_per_gpu{{{RUN}}}", "by GPU")),
    panel("Seconds of a step", "s", "Mean.",
          (f"rate(rljob_step_seconds_sum{{{RUN}}}[$__rate_interval]) / "
           f"rate(rljob_step_seconds_count{{{RUN}}}[$__rate_interval])", "step")),
    panel("Sampled tokens", "none", "Completion tokens per second.",
          (f"rate(rljob_rollout_tokens_total{{{RUN}}}[$__rate_interval])", "tokens/s")),
    panel("Use of GPUs", "percentunit", "Share of their bf16 operations while they train.",
          (f"rljob_learner_mfu{{{RUN}}}", "newest step")),
    panel("Memory of learners", "bytes", "Most memory that tensors used on a GPU.",
          (f"rljob_learner_peak_memory_bytes{{{RUN}}}", "peak")),
    panel("Gradient", "none", "Norm before clipping.",
          (f"rljob_gradient_norm{{{RUN}}}", "newest step")),
    panel("Staleness", "none", "Steps by which engines lag, and mean age of trained samples.",
          (f"rljob_engine_version_lag{{{RUN}}}", "slowest engine"),
          (f"rate(rljob_sample_staleness_sum{{{RUN}}}[$__rate_interval]) / "
           f"rate(rljob_sample_staleness_count{{{RUN}}}[$__rate_interval])", "samples")),
    panel("Samples that are not trained on", "none", "Per second.",
          (f"rate(rljob_stale_samples_total{{{RUN}}}[$__rate_interval])", "too old"),
          (f"rate(rljob_interruptions_total{{{RUN}}}[$__rate_interval])", "interruptions"),
          (f"rate(rljob_dropped_groups_total{{{RUN}}}[$__rate_interval])", "dropped groups"),
          (f"sum(rate(rljob_rejected_samples_total{{{RUN}}}[$__rate_interval])) "
           "or on () vector(0)", "rejected")),
    panel("Requests of engines", "none", "Running and queued.",
          (f'{{__name__="sglang:num_running_reqs", {RUN}}}', "running {{pod}}"),
          (f'{{__name__="sglang:num_queue_reqs", {RUN}}}', "queued {{pod}}")),
    panel("Throughput of engines", "none", "Tokens per second, as engines measure it.",
          (f'{{__name__="sglang:gen_throughput", {RUN}}}', "{{pod}}")),
    panel("Idle engines", "none", "Engines of rollouts without a request, in the mean.",
          (f"rate(rljob_engine_idle_seconds_total{{{RUN}}}[$__rate_interval])", "idle")),
    panel("Pods", "none", "Ready and desired pods by role.",
          (f"sum by (role) (rljob_job_replicas_ready{{{JOB}}})", "{{role}} ready"),
          (f"sum by (role) (rljob_job_replicas_desired{{{JOB}}})", "{{role}} desired")),
    panel("Evaluations that wait", "none", "For engines that only evaluate, or run there.",
          (f"rljob_pending_evaluations{{{RUN}}}", "evaluations")),
]


def variable(name, label, query, many):
    return dict(
        name=name, label=label, type="query", datasource=SOURCE, refresh=2, sort=1,
        query=dict(query=query, refId=name), definition=query,
        **(dict(multi=True, includeAll=True, allValue=".*") if many else {}),
    )


NAMESPACES = "label_values(rljob_job_status_condition, namespace)"
OPERATORS = "label_values(rljob_leader, namespace)"
JOBS = 'label_values(rljob_job_status_condition{namespace="$namespace"}, name)'
DASHBOARDS = {
    "fleet": ("RLJobs: fleet", FLEET, [variable("namespace", "Namespace", NAMESPACES, True)]),
    "job": ("RLJobs: one job", RUNNING, [
        variable("namespace", "Namespace", NAMESPACES, False),
        variable("job", "Job", JOBS, False),
    ]),
    "operator": ("RLJobs: operator", OPERATOR,
                 [variable("namespace", "Namespace of the operator", OPERATORS, True)]),
}


def placed(panels):
    """Panels in rows, from the left."""
    x, y, below = 0, 0, 0
    for index, each in enumerate(panels):
        height = HEIGHT if each["kind"] == "timeseries" else HEIGHT // 2
        if x + each["width"] > WIDTH:
            x, y = 0, below
        yield dict(
            id=index + 1,
            type=each["kind"],
            title=each["title"],
            description=each["description"],
            datasource=SOURCE,
            gridPos=dict(x=x, y=y, w=each["width"], h=height),
            fieldConfig=dict(defaults=dict(unit=each["unit"]), overrides=[]),
            targets=[
                dict(refId=chr(ord("A") + at), expr=query, legendFormat=legend, datasource=SOURCE)
                for at, (query, legend) in enumerate(each["queries"])
            ],
        )
        x, below = x + each["width"], max(below, y + height)


def dashboard(name):
    title, panels, variables = DASHBOARDS[name]
    source = dict(name="datasource", label="Data source", type="datasource", query="prometheus")
    return dict(
        uid=f"rljob-{name}",
        title=title,
        tags=["rljob"],
        schemaVersion=39,
        editable=False,
        refresh="30s",
        time={"from": "now-6h", "to": "now"},
        templating=dict(list=[source, *variables]),
        panels=list(placed(panels)),
    )


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in DASHBOARDS:
        path = folder / f"{name}.json"
        path.write_text(json.dumps(dashboard(name), indent=1) + "\n")


main()

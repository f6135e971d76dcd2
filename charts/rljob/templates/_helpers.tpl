{{/* Name of the operator's objects. The operator's Lease has the same name, so that a namespace has
     at most one release. */}}
{{- define "rljob.name" -}}
rljob-operator
{{- end }}

{{/* Name of the operator's cluster-scoped objects: one release manages all namespaces, or any
     number of releases one namespace each. */}}
{{- define "rljob.clusterName" -}}
{{- if .Values.jobs.namespace -}}
{{ include "rljob.name" . }}-{{ .Release.Namespace }}
{{- else -}}
{{ include "rljob.name" . }}
{{- end }}
{{- end }}

{{/* Labels that select operator pods; the NetworkPolicies of jobs admit pods with them. */}}
{{- define "rljob.selectorLabels" -}}
app.kubernetes.io/name: {{ include "rljob.name" . }}
{{- end }}

{{/* Labels of all objects. */}}
{{- define "rljob.labels" -}}
{{ include "rljob.selectorLabels" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* The operator's image: by digest, else by tag. */}}
{{- define "rljob.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels as an argument of the operator: `key=value`, separated by commas. */}}
{{- define "rljob.labelList" -}}
{{- $pairs := list -}}
{{- range $key, $value := . -}}
{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end }}

{{/* Subject of the operator's role bindings. */}}
{{- define "rljob.subjects" -}}
- kind: ServiceAccount
  name: {{ .Values.serviceAccount.name }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{/* Name of the role for RLJobs. In one namespace it differs from the operator's own Role, which is
     in the release's namespace. */}}
{{- define "rljob.jobsRoleName" -}}
{{- if .Values.jobs.namespace -}}
{{ include "rljob.name" . }}-jobs
{{- else -}}
{{ include "rljob.name" . }}
{{- end }}
{{- end }}

{{/* Metadata of the role for RLJobs and of its binding. */}}
{{- define "rljob.jobsRoleMetadata" -}}
name: {{ include "rljob.jobsRoleName" . }}
{{- with .Values.jobs.namespace }}
namespace: {{ . }}
{{- end }}
labels: {{- include "rljob.labels" . | nindent 2 }}
{{- end }}

{{/* CEL expression of the admission policy: an RLJob controls the object, or it does not exist. */}}
{{- define "rljob.isOwned" -}}
>-
  {{ . }} == null || has({{ . }}.metadata.ownerReferences)
  && {{ . }}.metadata.ownerReferences.exists(owner, owner.kind == 'RLJob'
  && owner.apiVersion.startsWith('rljob.dev/') && has(owner.controller) && owner.controller)
{{- end }}

{{/* CEL expression: the object exists and names a queue of Kueue. */}}
{{- define "rljob.isQueued" -}}
>-
  {{ . }} != null && has({{ . }}.metadata.labels)
  && 'kueue.x-k8s.io/queue-name' in {{ . }}.metadata.labels
  && {{ . }}.metadata.labels['kueue.x-k8s.io/queue-name'] != ''
{{- end }}

{{/* API group of the PodGroups of a gang scheduler. */}}
{{- define "rljob.podGroupApi" -}}
{{ get (dict "native" "scheduling.k8s.io" "coscheduling" "scheduling.x-k8s.io" "volcano" "scheduling.volcano.sh") . }}
{{- end }}

{{/* Labels of the values, which may be null, with those of a template of this file over them. */}}
{{- define "rljob.mergedLabels" -}}
{{- $own := include (index . 2) (index . 0) | fromYaml -}}
{{- mergeOverwrite (index . 1 | default dict | deepCopy) $own | toYaml -}}
{{- end }}

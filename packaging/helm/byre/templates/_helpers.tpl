{{- define "byre.name" -}}
{{- if contains "byre" .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-byre" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "byre.selector" -}}
app.kubernetes.io/name: byre
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "byre.labels" -}}
{{ include "byre.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

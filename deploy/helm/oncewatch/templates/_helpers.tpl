{{- define "oncewatch.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "oncewatch.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "oncewatch.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "oncewatch.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels of every object; call with (list $ component). */ -}}
{{- define "oncewatch.labels" -}}
{{- $root := index . 0 -}}
{{ include "oncewatch.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: oncewatch
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* Labels that select a component's pods, and never change. */ -}}
{{- define "oncewatch.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "oncewatch.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "oncewatch.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "oncewatch.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- /* What every pod has in common. */ -}}
{{- define "oncewatch.pod" -}}
serviceAccountName: {{ include "oncewatch.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "oncewatch.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* The garbage collector works harder before the limit is reached. */ -}}
{{- define "oncewatch.memoryLimit" -}}
- name: GOMEMLIMIT
  valueFrom:
    resourceFieldRef: {resource: limits.memory}
{{- end -}}

{{- /* Ports a component may reach, beside DNS. */ -}}
{{- define "oncewatch.egress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- range . }}
- ports:
    - {port: {{ .port }}, protocol: TCP}
  {{- with get . "to" }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* What cannot be meant by the values of state. */ -}}
{{- define "oncewatch.checkState" -}}
{{- $state := .Values.state -}}
{{- $config := .Values.config -}}
{{- if or (hasKey $config "state") (hasKey $config "state.path") -}}
{{- fail "config.state: the container's root is read-only; set state.enabled, which mounts a volume and sets --state.path" -}}
{{- end -}}
{{- if and (not $state.enabled) (or $state.existingClaim $state.storageClassName) -}}
{{- fail "state: a claim or a storage class is named, and state.enabled is not set" -}}
{{- end -}}
{{- if and $state.existingClaim $state.storageClassName -}}
{{- fail "state.storageClassName: state.existingClaim has a class already; leave one of the two out" -}}
{{- end -}}
{{- if and $state.existingClaim (gt (int .Values.replicas) 1) -}}
{{- fail (printf "state.existingClaim: %d replicas cannot share one state; set replicas to 1, or leave state.existingClaim out for a claim for each" (int .Values.replicas)) -}}
{{- end -}}
{{- end -}}

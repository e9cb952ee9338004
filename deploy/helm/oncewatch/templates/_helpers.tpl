{{- define "oncewatch.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* What is too long is told apart by its hash, not cut into its neighbour's. */ -}}
{{- define "oncewatch.fullname" -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $full = ternary .Release.Name (printf "%s-%s" .Release.Name (include "oncewatch.name" .)) (contains (include "oncewatch.name" .) .Release.Name) -}}
{{- end -}}
{{- if gt (len $full) 50 -}}
{{- printf "%s-%s" ($full | trunc 41 | trimSuffix "-") ($full | sha256sum | trunc 8) -}}
{{- else -}}
{{- $full | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Call with (list $ image). */ -}}
{{- define "oncewatch.image" -}}
{{- $image := index . 1 -}}
{{- if get $image "digest" -}}
{{- printf "%s@%s" $image.repository $image.digest | quote -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default (index . 0).Chart.AppVersion) | quote -}}
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
{{- with $root.Values.labels }}
{{ toYaml . }}
{{- end }}
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

{{- /* No secret in clear: not in config, env, envFrom or arguments. */ -}}
{{- define "oncewatch.checkConfig" -}}
{{- $config := .Values.config -}}
{{- include "oncewatch.refuseSecrets" (list "config" $config) -}}
{{- if get $config "stores" -}}
{{- range $key, $_ := $config -}}
{{- if or (eq $key "postgres") (hasPrefix "postgres." $key) -}}
{{- fail (printf "config.%s: config.stores replaces it; put its settings into an entry of config.stores" $key) -}}
{{- end -}}
{{- end -}}
{{- if $.Values.secrets.postgresDSN.name -}}
{{- fail "secrets.postgresDSN: config.stores replaces it; list the Secret in secrets.files and set dsn-file in an entry of config.stores" -}}
{{- end -}}
{{- end -}}
{{- range $place := list "initContainers" "extraContainers" -}}
{{- range $i, $c := index $.Values $place -}}
{{- include "oncewatch.refuseSecretEnv" (list (printf "%s[%d].env" $place $i) (get $c "env" | default list)) -}}
{{- range $kind := list "args" "command" -}}
{{- include "oncewatch.refuseSecrets" (list (printf "%s[%d].%s" $place $i $kind) (get $c $kind)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "oncewatch.refuseSecretEnv" (list "env" .Values.env) -}}
{{- include "oncewatch.refuseSecretEnv" (list "referenceConsumer.env" .Values.referenceConsumer.env) -}}
{{- include "oncewatch.refuseSecrets" (list "referenceConsumer.args" .Values.referenceConsumer.args) -}}
{{- end -}}

{{- /* Call with (list path value). Keys are taken apart at their points, as the program does. */ -}}
{{- define "oncewatch.refuseSecrets" -}}
{{- $path := index . 0 -}}
{{- $value := index . 1 -}}
{{- if kindIs "map" $value -}}
{{- range $key, $inner := $value -}}
{{- if and $inner (regexMatch "(^|\\.)(password|oauth-client-secret)$" $key) -}}
{{- fail (printf "%s.%s: a secret in clear; put it into a Secret, list that in secrets.files and name its file in %s-file" $path $key $key) -}}
{{- end -}}
{{- include "oncewatch.refuseSecrets" (list (printf "%s.%s" $path $key) $inner) -}}
{{- end -}}
{{- else if kindIs "slice" $value -}}
{{- range $i, $inner := $value -}}
{{- include "oncewatch.refuseSecrets" (list (printf "%s[%d]" $path $i) $inner) -}}
{{- end -}}
{{- else if kindIs "string" $value -}}
{{- if regexMatch "://[^/?#\\s]*:[^/?#\\s]+@" $value -}}
{{- fail (printf "%s: a URL with a password in clear; put it into a Secret and name its file or variable" $path) -}}
{{- end -}}
{{- if regexMatch "(?i)(^|[\\s?&.-])(ssl)?(password|client-secret)\\s*=\\s*[^\\s$]" $value -}}
{{- fail (printf "%s: a password in clear; put it into a Secret and name its file or variable" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Call with (list path env). A variable that names a file holds no secret. */ -}}
{{- define "oncewatch.refuseSecretEnv" -}}
{{- $path := index . 0 -}}
{{- range $i, $e := index . 1 -}}
{{- $at := printf "%s[%d] (%s)" $path $i $e.name -}}
{{- if get $e "value" -}}
{{- if regexMatch "(?i)(PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|CREDENTIALS|API_?KEY|PRIVATE_?KEY|ACCESS_KEY)$" $e.name -}}
{{- fail (printf "%s: a secret in clear; use valueFrom.secretKeyRef" $at) -}}
{{- end -}}
{{- if regexMatch "(?i)(authorization|api-?key)=" $e.value -}}
{{- fail (printf "%s: a secret in clear; use valueFrom.secretKeyRef" $at) -}}
{{- end -}}
{{- include "oncewatch.refuseSecrets" (list $at $e.value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

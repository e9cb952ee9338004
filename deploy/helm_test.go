package deploy_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"oncewatch/deploy/testenv"
)

const chart = "deploy/helm/oncewatch"

// object is what the tests look at of a rendered Kubernetes object. That its
// keys are spelt right is checked with Kubernetes' own types.
type object struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Data map[string]string
	Spec struct {
		Groups         []any
		MaxUnavailable any      `yaml:"maxUnavailable"`
		PolicyTypes    []string `yaml:"policyTypes"`
		Ingress        []any
		Egress         []any
		Selector       map[string]any
		PodSelector    map[string]any `yaml:"podSelector"`
		Endpoints      []struct {
			Port, Scheme string
			BasicAuth    *struct{ Username, Password struct{ Name, Key string } } `yaml:"basicAuth"`
			TLSConfig    map[string]any                                           `yaml:"tlsConfig"`
		}
		Replicas       int
		Strategy       struct{ Type string }
		ServiceName    string `yaml:"serviceName"`
		ClaimTemplates []struct {
			Metadata struct{ Name string }
			Spec     struct {
				AccessModes      []string `yaml:"accessModes"`
				StorageClassName string   `yaml:"storageClassName"`
				Resources        struct{ Requests map[string]string }
			}
		} `yaml:"volumeClaimTemplates"`
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     podSpec
		}
	}
}

type podSpec struct {
	AutomountServiceAccountToken *bool `yaml:"automountServiceAccountToken"`
	SecurityContext              struct {
		RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
		FSGroup        int                   `yaml:"fsGroup"`
		SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	Containers []container
	Volumes    []struct {
		Name  string
		Claim struct {
			Name string `yaml:"claimName"`
		} `yaml:"persistentVolumeClaim"`
	}
}

type container struct {
	Name, Image string
	Args        []string
	Env         []struct {
		Name, Value string
		ValueFrom   map[string]any `yaml:"valueFrom"`
	}
	Resources    struct{ Requests, Limits map[string]string }
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
	StartupProbe    *probe `yaml:"startupProbe"`
	LivenessProbe   *probe `yaml:"livenessProbe"`
	ReadinessProbe  *probe `yaml:"readinessProbe"`
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop []string }
	} `yaml:"securityContext"`
}

type probe struct {
	HTTPGet struct{ Path, Port, Scheme string } `yaml:"httpGet"`
}

func rendered(t *testing.T, values ...string) []object {
	t.Helper()
	text, err := strict(t, append([]string{"chart", chart}, values...)...)
	if err != nil {
		t.Fatal(err)
	}
	var objects []object
	for decoder := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o object
		if err := decoder.Decode(&o); err != nil {
			break
		}
		objects = append(objects, o)
	}
	return objects
}

func TestChart(t *testing.T) {
	t.Parallel()
	for name, values := range map[string][]string{
		"as it is":   nil,
		"everything": {chart + "/ci/everything-values.yaml"},
		"one claim":  {chart + "/ci/existing-claim-values.yaml"},
		"stores":     {chart + "/ci/stores-values.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := rendered(t, values...)
			checkSelectors(t, objects)
			kinds := map[string]int{}
			pods := map[string]map[string]string{} // component → its pods' labels
			for _, o := range objects {
				kinds[o.Kind]++
				if o.Kind == "Deployment" || o.Kind == "StatefulSet" || o.Kind == "Job" {
					pods[o.Metadata.Labels["app.kubernetes.io/component"]] = o.Spec.Template.Metadata.Labels
					checkPod(t, o)
				}
				if config := o.Data["oncewatch.yml"]; config != "" {
					file := filepath.Join(t.TempDir(), "oncewatch.yml")
					if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
						t.Fatal(err)
					}
					knowsConfig(t, file)
				}
				if o.Kind == "NetworkPolicy" && (len(o.Spec.PolicyTypes) != 2 || len(o.Spec.Egress) < 2 || len(o.Spec.Ingress) != 1) {
					t.Errorf("NetworkPolicy %s leaves something open: %+v", o.Metadata.Name, o.Spec)
				}
			}
			// The pruner and the migrations may be away for a while.
			budgets := 1
			if _, ok := pods["consumer"]; ok {
				budgets = 2
			}
			if kinds["PodDisruptionBudget"] != budgets || kinds["NetworkPolicy"] != len(pods) {
				t.Errorf("%d components, and %v", len(pods), kinds)
			}
		})
	}
}

// checkSelectors fails where something selects nothing: that is no error to
// Kubernetes, and no metric to Prometheus.
func checkSelectors(t *testing.T, objects []object) {
	t.Helper()
	has := func(labels map[string]string, selector map[string]any) bool {
		if inner, ok := selector["matchLabels"].(map[string]any); ok {
			selector = inner
		}
		for k, v := range selector {
			if labels[k] != v {
				return false
			}
		}
		return len(selector) > 0
	}
	for _, o := range objects {
		selector := o.Spec.Selector
		if o.Kind == "NetworkPolicy" {
			selector = o.Spec.PodSelector
		}
		if selector == nil {
			continue
		}
		selected := 0
		for _, other := range objects {
			labels := other.Spec.Template.Metadata.Labels // of pods
			if o.Kind == "ServiceMonitor" {
				labels = other.Metadata.Labels
				if other.Kind != "Service" {
					continue
				}
			}
			if labels != nil && has(labels, selector) {
				selected++
			}
		}
		if selected != 1 {
			t.Errorf("%s %s selects %d things, want 1: %v", o.Kind, o.Metadata.Name, selected, selector)
		}
		for _, e := range o.Spec.Endpoints {
			exporter := o.Metadata.Labels["app.kubernetes.io/component"] == "exporter"
			if exporter && (e.Scheme != "https" || e.BasicAuth == nil || e.BasicAuth.Password.Name != "oncewatch-scrape" || e.TLSConfig["serverName"] != "oncewatch.example") {
				t.Errorf("%s does not scrape as told: %+v", o.Metadata.Name, e)
			}
		}
	}
}

func checkPod(t *testing.T, o object) {
	t.Helper()
	pod := o.Spec.Template.Spec
	if !pod.SecurityContext.RunAsNonRoot || pod.SecurityContext.SeccompProfile.Type != "RuntimeDefault" ||
		pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Errorf("%s may be root, make any call to the kernel or talk to Kubernetes: %+v", o.Metadata.Name, pod)
	}
	binaries := map[string]string{"oncewatch": "oncewatch", "consumer": "reference-consumer", "pruner": "reference-consumer", "migrate": "reference-consumer"}
	for _, c := range pod.Containers {
		binary, ours := binaries[c.Name]
		if !ours {
			continue
		}
		s := c.SecurityContext
		if !s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !reflect.DeepEqual(s.Capabilities.Drop, []string{"ALL"}) {
			t.Errorf("%s may write its root or gain rights: %+v", c.Name, s)
		}
		if c.Resources.Limits["memory"] == "" || c.Resources.Requests["cpu"] == "" {
			t.Errorf("%s has no bounds: %+v", c.Name, c.Resources)
		}
		if o.Kind != "Job" {
			for want, probes := range map[string][]*probe{"/-/healthy": {c.StartupProbe, c.LivenessProbe}, "/-/ready": {c.ReadinessProbe}} {
				for _, p := range probes {
					if p == nil || p.HTTPGet.Path != want {
						t.Errorf("%s: a probe asks %+v, want %s", c.Name, p, want)
					}
				}
			}
		}
		var variables []string
		for _, e := range c.Env {
			if strings.HasSuffix(e.Name, "_DSN") && e.ValueFrom["secretKeyRef"] == nil {
				t.Errorf("%s: %s is not taken from a secret", c.Name, e.Name)
			}
			if strings.HasPrefix(e.Name, "ONCEWATCH_") || strings.HasPrefix(e.Name, "REFERENCE_CONSUMER_") {
				variables = append(variables, e.Name)
			}
		}
		knowsCommand(t, binary, c.Args, variables...)
	}
}

// The state outlives the pod: each replica has a claim of its own, or the only
// replica has the one that is there already and no second beside it, ever.
func TestChartKeepsTheState(t *testing.T) {
	t.Parallel()
	exporter := func(values ...string) object {
		for _, o := range rendered(t, values...) {
			if o.Metadata.Labels["app.kubernetes.io/component"] == "exporter" && len(o.Spec.Template.Spec.Containers) > 0 {
				return o
			}
		}
		t.Fatal("no exporter")
		return object{}
	}
	// keeps is the name of the volume that --state.path lies in.
	keeps := func(o object) string {
		c := o.Spec.Template.Spec.Containers[0]
		for _, arg := range c.Args {
			path, ok := strings.CutPrefix(arg, "--state.path=")
			if !ok {
				continue
			}
			for _, m := range c.VolumeMounts {
				if strings.HasPrefix(path, m.MountPath+"/") && !m.ReadOnly {
					return m.Name
				}
			}
			t.Errorf("%s is on no volume: %+v", path, c.VolumeMounts)
		}
		return ""
	}
	if o := exporter(); o.Kind != "Deployment" || keeps(o) != "" || o.Spec.Strategy.Type != "" {
		t.Errorf("nothing asked for: %s keeps its state on %q, strategy %q", o.Kind, keeps(o), o.Spec.Strategy.Type)
	}

	o := exporter(chart + "/ci/everything-values.yaml")
	if o.Kind != "StatefulSet" || o.Spec.Replicas != 2 || o.Spec.ServiceName != o.Metadata.Name || len(o.Spec.ClaimTemplates) != 1 {
		t.Fatalf("want a StatefulSet of two with one template of a claim: %+v", o)
	}
	claim := o.Spec.ClaimTemplates[0]
	if claim.Metadata.Name != keeps(o) || claim.Spec.Resources.Requests["storage"] != "2Gi" || claim.Spec.StorageClassName != "fast" || !reflect.DeepEqual(claim.Spec.AccessModes, []string{"ReadWriteOnce"}) {
		t.Errorf("the state is on %q, the claim is %+v", keeps(o), claim)
	}
	if o.Spec.Template.Spec.SecurityContext.FSGroup != 65532 {
		t.Error("the program's user may not write the volume")
	}

	o = exporter(chart + "/ci/existing-claim-values.yaml")
	if o.Kind != "Deployment" || o.Spec.Replicas != 1 || o.Spec.Strategy.Type != "Recreate" {
		t.Errorf("want one replica, the old one gone before the new one starts: %s %+v", o.Kind, o.Spec.Strategy)
	}
	mounted := false
	for _, v := range o.Spec.Template.Spec.Volumes {
		mounted = mounted || v.Name == keeps(o) && v.Claim.Name == "oncewatch-state"
	}
	if !mounted {
		t.Errorf("the claim is not mounted: %+v", o.Spec.Template.Spec.Volumes)
	}
}

// Several stores come with a file of a secret each, and what a pod may have
// more arrives where it belongs; an image that is named by its digest has no tag.
func TestChartTakesMore(t *testing.T) {
	t.Parallel()
	text, err := strict(t, "chart", chart, chart+"/ci/stores-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for want, n := range map[string]int{
		`"registry.example/oncewatch@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"`:          1,
		`"registry.example/reference-consumer@sha256:fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"`: 3,
		"- {name: secret-0, mountPath: /etc/oncewatch/secrets/orders-db, readOnly: true}":                               1,
		"secret: {secretName: billing.db, defaultMode: 288}":                                                            1,
		`reloader.example/auto: "false"`:   1,
		`example.org/scrape: "true"`:       1,
		"name: audit":                      1,
		"name: proxy":                      2, // the sidecar, and the ConfigMap of envFrom
		"maxUnavailable: 50%":              1,
		"cidr: 169.254.169.254/32":         4, // of every component
		"mountPath: /etc/ca":               4,
		"mountPath: /var/run/secrets/eks":  1,
		"path: token":                      1,
		"dsn-file: /etc/oncewatch/secrets": 1,
	} {
		if got := strings.Count(text, want); got != n {
			t.Errorf("%s is there %d times, want %d", want, got, n)
		}
	}
	for _, o := range rendered(t, chart+"/ci/stores-values.yaml") {
		if o.Metadata.Labels["cost-centre"] != "42" {
			t.Errorf("%s %s has not the label that all shall have", o.Kind, o.Metadata.Name)
		}
	}
}

// Two releases in one namespace share no object and select no pod of each
// other's, however long their names.
func TestReleasesStandSideBySide(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 52)
	for _, names := range [][2]string{{"east", "west"}, {"oncewatch", "oncewatch-2"}, {long + "1", long + "2"}} {
		objects := map[string]string{}
		for _, name := range names {
			for _, o := range rendered(t, "--release="+name, chart+"/ci/everything-values.yaml") {
				id := o.Kind + " " + o.Metadata.Name
				if other, ok := objects[id]; ok {
					t.Errorf("%s is of %s and of %s", id, other, name)
				}
				objects[id] = name
				if len(o.Metadata.Name) > 63 {
					t.Errorf("%s is too long a name", id)
				}
				for _, selector := range []map[string]any{o.Spec.Selector, o.Spec.PodSelector} {
					if inner, ok := selector["matchLabels"].(map[string]any); ok {
						selector = inner
					}
					if selector != nil && selector["app.kubernetes.io/instance"] != name {
						t.Errorf("%s selects beyond its release: %v", id, selector)
					}
				}
			}
		}
	}
}

// Kubernetes' last two versions, and the oldest that the chart names, get the
// same; an older one is refused.
func TestChartSuitsVersionsOfKubernetes(t *testing.T) {
	t.Parallel()
	for _, values := range []string{"everything", "stores"} {
		texts := map[string]bool{}
		for _, version := range []string{"1.37", "1.36", "1.27"} {
			text, err := strict(t, "chart", chart, "--kubernetes="+version, chart+"/ci/"+values+"-values.yaml")
			if err != nil {
				t.Errorf("%s for %s: %v", values, version, err)
			}
			texts[text] = true
		}
		if len(texts) != 1 {
			t.Errorf("%s: %d different renderings", values, len(texts))
		}
	}
	if _, err := strict(t, "chart", chart, "--kubernetes=1.26"); err == nil || !strings.Contains(err.Error(), "1.27") {
		t.Errorf("1.26: got %v, want an error that names 1.27", err)
	}
}

// What the chart ships is what the other folders hold: the same rules and the
// same dashboards.
func TestChartFiles(t *testing.T) {
	t.Parallel()
	want := map[string]bool{}
	for _, pattern := range []string{"alerts/*.rules.yml", "dashboards/*.json"} {
		files, err := filepath.Glob(filepath.Join(testenv.Root(), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			want[f] = true
		}
	}
	links, err := filepath.Glob(filepath.Join(testenv.Root(), chart, "files", "*"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, l := range links {
		target, err := filepath.EvalSymlinks(l)
		if err != nil {
			t.Errorf("%v: the chart's links must follow alerts/ and dashboards/", err)
			continue
		}
		got[target] = true
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s/files links to\n%v\nwant\n%v", chart, got, want)
	}

	var groups []any
	boards := map[string]string{}
	for _, o := range rendered(t, chart+"/ci/everything-values.yaml") {
		groups = append(groups, o.Spec.Groups...)
		for name, text := range o.Data {
			if strings.HasSuffix(name, ".json") {
				boards[name] = text
				if o.Metadata.Labels["grafana_dashboard"] != "1" {
					t.Errorf("the sidecar does not find %s", o.Metadata.Name)
				}
			}
		}
	}
	var shipped []any
	for f := range want {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(f, ".json") {
			if strings.TrimSpace(boards[filepath.Base(f)]) != strings.TrimSpace(string(raw)) {
				t.Errorf("%s changed on its way through the chart", f)
			}
			continue
		}
		var file struct{ Groups []any }
		if err := yaml.Unmarshal(raw, &file); err != nil {
			t.Fatal(err)
		}
		shipped = append(shipped, file.Groups...)
	}
	name := func(group any) string { return group.(map[string]any)["name"].(string) }
	byName := map[string]any{}
	for _, g := range groups {
		byName[name(g)] = g
	}
	if len(byName) != len(shipped) {
		t.Errorf("the chart installs %d groups of rules, alerts/ has %d", len(byName), len(shipped))
	}
	for _, g := range shipped {
		if !reflect.DeepEqual(normal(byName[name(g)]), normal(g)) {
			t.Errorf("the group %s changed on its way through the chart:\n%v\n%v", name(g), byName[name(g)], g)
		}
	}
}

// normal evens out what YAML may write in several ways: white space at the ends
// of a text, and whole numbers.
func normal(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			out[k] = normal(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = normal(e)
		}
		return out
	case string:
		return strings.TrimSpace(v)
	case int:
		return float64(v)
	}
	return v
}

// Values that cannot be meant are refused, above all secrets in clear.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"replica: 2": "replica",
		"config: {postgres: {dsn: postgres://u:p@h/d}}":                    "config.postgres.dsn: a URL with a password",
		"config: {postgres.dsn: postgres://u:p@h/d}":                       "config.postgres.dsn: a URL with a password",
		"config: {postgres.dsn: host=h password=p}":                        "config.postgres.dsn: a password in clear",
		"config: {kafka: {sasl: {password: p}}}":                           "config.kafka.sasl.password: a secret in clear",
		"config: {kafka: {sasl.password: p}}":                              "config.kafka.sasl.password: a secret in clear",
		"config: {kafka: {sasl: {oauth-client-secret: p}}}":                "config.kafka.sasl.oauth-client-secret: a secret in clear",
		"config: {stores: [{database: a}, {dsn: postgres://u:p@h/d}]}":     "config.stores[1].dsn: a URL with a password",
		"config: {stores: [{dsn: 'postgres://h/d?user=u&password=p'}]}":    "config.stores[0].dsn: a password in clear",
		"config: {consumer: {metrics-url: ['http://u:p@c:1/metrics']}}":    "config.consumer.metrics-url[0]: a URL with a password",
		"config: {stores: []}":                                             "/config/stores",
		"config: {stores: [{database: a}], postgres: {retention: 8d}}":     "config.postgres: config.stores replaces it",
		"config: {stores: [{database: a}], postgres.table: t}":             "config.postgres.table: config.stores replaces it",
		"{config: {stores: [{}]}, secrets: {postgresDSN: {name: db}}}":     "secrets.postgresDSN: config.stores replaces it",
		"secrets: {files: [{name: n}]}":                                    "/secrets/files/0",
		"env: [{name: A, value: b}, {name: PGPASSWORD, value: p}]":         "env[1] (PGPASSWORD): a secret in clear",
		"env: [{name: AWS_SECRET_ACCESS_KEY, value: p}]":                   "env[0] (AWS_SECRET_ACCESS_KEY): a secret in clear",
		"env: [{name: ONCEWATCH_POSTGRES_DSN, value: 'postgres://u:p@h'}]": "env[0] (ONCEWATCH_POSTGRES_DSN): a URL with a password",
		"referenceConsumer: {env: [{name: X_TOKEN, value: p}]}":            "referenceConsumer.env[0] (X_TOKEN): a secret in clear",
		"referenceConsumer: {args: [--kafka.sasl.password=p]}":             "referenceConsumer.args[0]: a password in clear",
		"initContainers: [{name: a, args: ['postgres://u:p@h/d']}]":        "initContainers[0].args[0]: a URL with a password",
		"extraContainers: [{name: a, env: [{name: PASSWORD, value: p}]}]":  "extraContainers[0].env[0] (PASSWORD): a secret in clear",
		"image: {digest: latest}":                                          "digest",
		"extraVolumes: [{configMap: {name: a}}]":                           "extraVolumes/0",
		"secrets: {postgresDSN: {name: n, value: postgres://u:p@h/d}}":     "value",
		"serviceMonitor: {interval: often}":                                "interval",
		"resources: {requests: {cpu: 1}, limits: null}":                    "limits",
		"referenceConsumer: {postgresDSN: {name: n, key: k, password: p}}": "password",
		"state: {enabled: true, path: /tmp}":                               "path",
		"state: {enabled: true, size: much}":                               "size",
		"state: {existingClaim: c}":                                        "state.enabled",
		"state: {storageClassName: fast}":                                  "state.enabled",
		"state: {enabled: true, existingClaim: c, storageClassName: fast}": "state.storageClassName",
		"{replicas: 2, state: {enabled: true, existingClaim: c}}":          "2 replicas cannot share one state",
		"{config: {state: {path: /tmp}}, state: {enabled: true}}":          "config.state",
		"config: {state.path: /tmp}":                                       "config.state",
	} {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(values), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := strict(t, "chart", chart, file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error that names %s", values, err, want)
		}
	}
}

// The check itself finds what a check without types passes.
func TestMisspeltKeyIsFound(t *testing.T) {
	t.Parallel()
	copied := filepath.Join(t.TempDir(), "oncewatch")
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(testenv.Root(), chart, "templates"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(copied, copied+".templates"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(copied, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(copied+".templates", filepath.Join(copied, "templates")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Chart.yaml", "values.yaml", "values.schema.json"} {
		if err := os.WriteFile(filepath.Join(copied, name), []byte(readFile(t, chart+"/"+name)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	deployment := filepath.Join(copied, "templates", "exporter.yaml")
	raw, err := os.ReadFile(deployment)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(deployment, []byte(strings.Replace(string(raw), "terminationGracePeriodSeconds", "terminationGraceSeconds", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := strict(t, "chart", copied); err == nil || !strings.Contains(err.Error(), `unknown field "spec.template.spec.terminationGraceSeconds"`) {
		t.Errorf("a misspelt key passes: %v", err)
	}
}

// Package dashboards generates oncewatch's three Grafana dashboards. Each
// answers one question: is every event applied once, why not, and will the
// marker table hold.
//
// The JSON beside the Go files is what Generate returns for the zero Options; a
// test keeps the two equal, and `go test ./dashboards -update` writes it.
package dashboards

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"oncewatch/alerts"
)

// Stable uids: links, bookmarks and playlists survive a new version.
const (
	overviewUID = "oncewatch-overview"
	groupUID    = "oncewatch-group"
	tableUID    = "oncewatch-table"
)

// dashboardTag is how the dashboards find one another.
const dashboardTag = "oncewatch"

// Options are the flags of `oncewatch dashboards`, the same as those of
// `oncewatch rules`: given alike, lines in graphs and alerts agree.
type Options struct {
	Set         map[string]string // thresholds by key, over those of ValuesFile
	ValuesFile  string            // YAML file of thresholds; none if empty
	RunbookBase string            // address of the runbook pages; alerts.DefaultRunbookBase if empty
	Loki        string            // format of the consumers' logs in Loki, json or logfmt: a dashboard more; none if empty

	// AskDataSource is for import by hand: Grafana asks which data source to use.
	// Provisioning and the sidecar, which ask nobody, cannot load such files.
	AskDataSource bool
}

// Generate returns the JSON of every dashboard by file name. The error names
// each value that cannot be used.
func Generate(o Options) (map[string][]byte, error) {
	t, err := alerts.Load(o.ValuesFile, o.Set)
	if err != nil {
		return nil, err
	}
	base := strings.TrimSuffix(cmp.Or(o.RunbookBase, alerts.DefaultRunbookBase), "/")
	runbook := func(alert string) string { return base + "/" + alert + ".md" }

	files := map[string][]byte{}
	var errs []error
	for _, p := range pages(t, base) {
		raw, err := p.build(runbook, p.annotations(), p.selectors(o.AskDataSource), o.AskDataSource)
		errs = append(errs, err)
		files[p.uid+".json"] = raw
	}
	return files, errors.Join(errs...)
}

func pages(t alerts.Thresholds, base string) []page {
	const pageURL = "http://${exporter}" // its own page, where it is scraped
	return []page{overview(t, pageURL, base), group(t, pageURL), holding(t)}
}

// selectors are the variables of a dashboard.
func (p page) selectors(askDataSource bool) []dashboard.VariableModel {
	all := []dashboard.VariableModel{{
		Type: dashboard.VariableTypeDatasource, Name: "datasource", Label: cog.ToPtr("Data source"),
		Query: &dashboard.StringOrMap{String: cog.ToPtr("prometheus")},
	}}
	if askDataSource {
		answer := dashboard.StringOrArrayOfString{String: cog.ToPtr("${" + input + "}")}
		all[0].Current = &dashboard.VariableOption{Text: answer, Value: answer}
	}
	for _, v := range variables {
		if p.oneGroup && v.name == "consumer_group" {
			all = append(all, chosen(v.name, v.label, v.query))
			continue
		}
		all = append(all, variable(v.name, v.label, v.all, v.query))
	}
	if p.worst != "" {
		all = append(all, hidden("worst", p.worst, `/consumer_group="(.*?)"[,}]/`))
	}
	if p.worst != "" || p.oneGroup {
		exporter := chosen("exporter", "Exporter", `label_values(oncewatch_build_info{cluster=~"$cluster",job=~"$job",instance=~"$instance"}, instance)`)
		exporter.Hide = cog.ToPtr(dashboard.VariableHideHideVariable)
		all = append(all, exporter)
	}
	return all
}

// ours matches the names of oncewatch's alerts.
const ours = "ProcessedEvents.+|Consumer.+|Producer.+|MarkerEffectDivergence|Events.+|OutboxStuck"

// annotations mark on every graph what may explain it, of the groups that are
// drawn.
func (p page) annotations() []dashboard.AnnotationQuery {
	drawn := func(e string) string { return e }
	if p.worst != "" {
		drawn = ofWorst
	}
	return []dashboard.AnnotationQuery{
		event("Firing alerts", "red",
			drawn(expr(`max by (cluster, alertname, severity, consumer_group, topic) (ALERTS{alertstate="firing",alertname=~%q,consumer_group=~"$consumer_group|"})`, ours)),
			"{{alertname}}", "{{consumer_group}} {{topic}}", "severity", true, false),
		event("Consumer started", "blue",
			drawn(expr(`max by (%s, instance) (%s) * 1000`, perGroup, sel("consumer_start_time_seconds"))),
			"Consumer started", "{{consumer_group}} {{instance}}", "consumer_group", true, true),
		// Off at first: a pruner that works all the time would paint the graph
		// over. Switch it on to see whether lag follows the pruner's schedule.
		event("Pruner finished", "purple",
			expr(`max by (cluster, instance) (%s) * 1000`, sel("marker_prune_last_success_timestamp_seconds")),
			"Pruner finished", "{{instance}}", "instance", false, true),
	}
}

// input is what Grafana puts the chosen data source in place of.
const input = "DS_PROMETHEUS"

// Write writes every dashboard into dir, which it creates if need be.
func Write(dir string, o Options) error {
	files, err := Generate(o)
	if err == nil && o.Loki != "" {
		files["oncewatch-logs.json"], err = Logs(o.Loki)
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the folder for the dashboards: %w", err)
	}
	for name, raw := range files {
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o644); err != nil {
			return fmt.Errorf("write dashboard %s: %w", name, err)
		}
	}
	return nil
}

package dashboards

import (
	"fmt"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"oncewatch/alerts"
)

// Colours of a verdict, the same on every dashboard and on the exporter's page.
// Grey is given by its value: Grafana's own grey is near white in the dark theme.
const (
	holds    = "green"
	unknown  = "#8e8e99"
	warning  = "orange"
	violated = "red"
)

// words are the verdicts as the exporter's page says them.
var words = [...]struct{ text, color string }{
	isHolding: {"ok", holds}, isUnknown: {"unknown", unknown}, isWarning: {"warning", warning}, isViolated: {"violated", violated},
}

// shown is how many consumer groups are listed and drawn: more lines cannot be
// told apart.
const shown = 10

// ofWorst narrows an expression to the groups in most trouble, which a hidden
// variable holds: a graph of ten groups reads the series of ten.
func ofWorst(e string) string { return strings.ReplaceAll(e, "$consumer_group", "$worst") }

// worstGroups is the query of that variable.
func worstGroups() string {
	return expr(`query_result(topk(%d, %s))`, shown, seen())
}

// answers is one row for each of some consumer groups, and one column for each
// question, the group in most trouble first.
func answers(t alerts.Thresholds, title, pageURL string, height uint32, narrow func(string) string) panel {
	var (
		queries []query
		columns = []column{{"Consumer group", groupLinks(pageURL)}, {"Worst", overallCell()}}
		names   = map[string]any{"cluster": "Cluster", "consumer_group": "Consumer group"}
		order   = map[string]any{"cluster": 0, "consumer_group": 1}
		about   strings.Builder
	)
	add := func(name, e string, properties ...dashboard.DynamicConfigValue) {
		field := "Value #" + refID(len(queries))
		names[field], order[field] = name, 2+len(queries)
		queries = append(queries, query{expr: narrow(e), legend: name})
		if len(properties) > 0 {
			columns = append(columns, column{name, properties})
		}
	}
	number := func(pixels int, unit, missing string) []dashboard.DynamicConfigValue {
		return []dashboard.DynamicConfigValue{
			width(pixels), {Id: "unit", Value: unit}, {Id: "noValue", Value: missing}, {Id: "custom.align", Value: "right"},
			{Id: "color", Value: map[string]any{"mode": "fixed", "fixedColor": "text"}},
		}
	}
	add("Worst", trouble(t))
	q := questions(t)
	for _, one := range q {
		fmt.Fprintf(&about, "\n- **%s** is ok where %s.", one.name, one.good)
	}
	add(q[0].name, q[0].verdict(), verdictCell()...)
	add(q[1].name, q[1].verdict(), verdictCell()...)
	add("Progress", expr(`sum by (%s) (%s) / %s`, perGroup, progress(t), num(float64(t.StalledWindow)/1e9)), number(95, "recps", "not known")...)
	add("Time left", expr(`min by (%s) (%s) < +Inf`, perGroup, timeLeft()), number(115, "dtdhms", "not known")...)
	add(q[2].name, q[2].verdict(), verdictCell()...)
	add("Safe back to", expr(`1000 * (time() - min by (%s) (%s))`, perGroup, sel("processed_events_safe_rewind_seconds")), number(160, "dateTimeAsIso", "not known")...)
	add("Twice, at least", unprotected(perGroup), number(115, "short", "not known")...)
	add("Twice, at most", unprotectedAtMost(perGroup), number(115, "short", "not known")...)
	add(q[3].name, q[3].verdict(), verdictCell()...)
	return panel{
		title: title,
		description: "Every answer should say **ok**. Good: nothing else is seen. **unknown** means that what would prove it is not exported, and ranks above what is ok.\n" + about.String() + `

**Progress** is how many records the group has passed each second in the last ` + t.StalledWindow.String() + `. **Time left** is the topic's retention less the age of what waits; not known too where there is no limit. **Safe back to** is the earliest time to which a reset applies nothing twice. **Twice** is how many records a reset to the earliest offset would apply twice: *at least* those known to have lost their markers, *at most* those and the ones that nobody has verified. A firing alert counts as its severity says. A group stays listed for six hours after it was last seen.`,
		noData:   "no consumer group has been seen: is the exporter scraped, and does the selection above match one?",
		runbooks: []string{"ProcessedEventsReplayExposed", "ConsumerStalled", "ConsumerMetricsAbsent"},
		width:    gridWidth, height: height,
		queries: queries,
		draw: rowsOf([]dashboard.DataTransformerConfig{
			{Id: "merge", Options: map[string]any{}},
			{Id: "organize", Options: map[string]any{
				"excludeByName": map[string]any{"Time": true},
				"renameByName":  names, "indexByName": order,
			}},
			{Id: "sortBy", Options: map[string]any{
				"fields": map[string]any{}, "sort": []any{map[string]any{"field": "Worst", "desc": true}},
			}},
		}, columns),
	}
}

// timeLeft is how long the oldest waiting record stays on the broker, by topic.
func timeLeft() string {
	return expr(`%s - on (cluster, topic) group_right () max by (%s) (%s)`, topicRetention(), perTopic, sel("consumer_lag_seconds"))
}

// unprotected is how many records a reset to the earliest offset applies twice
// for certain; unprotectedAtMost adds those of which nobody knows.
func unprotected(key string) string {
	return expr(`sum by (%s) (%s)`, key, byPartition("processed_events_unprotected_records", ""))
}

func unprotectedAtMost(key string) string {
	return expr(`%s + %s`, unprotected(key), unverified(key))
}

// unverified is how many of the records that a reset would read nobody knows of.
func unverified(key string) string {
	return expr(`sum by (%s) (%s)`, key, byPartition("processed_events_unverified_records", ""))
}

// firingAlerts lists what fires, the gravest first, and since when.
func firingAlerts(base string, height uint32) panel {
	const labels = "cluster, alertname, database, consumer_group, topic"
	one := func(weight int, severity string) string {
		return expr(`%d * max by (%s) (ALERTS{alertstate="firing",severity=%q,alertname=~%q,consumer_group=~"$consumer_group|"})`, weight, labels, severity, ours)
	}
	firing := expr(`topk(20, %s or %s or %s)`, one(isViolated, "critical"), one(isWarning, "warning"), one(isUnknown, "info"))
	severity := verdictMappings(
		word{isViolated, "critical", violated}, word{isWarning, "warning", warning}, word{isUnknown, "info", "blue"},
	)
	return panel{
		title: "Alerts that fire",
		description: "At most 20, the gravest first; the number of all is above. Good: none, while that number is 0 and not unknown. " +
			"An alert's name opens its runbook.",
		noData:   "none is seen to fire, and none would be without the rules; the number above tells whether they are loaded",
		runbooks: []string{"ProcessedEventsExporterDown"},
		width:    gridWidth, height: height,
		queries: []query{
			{expr: firing, legend: "Severity"},
			{expr: expr(`1000 * min by (%s) (ALERTS_FOR_STATE{alertname=~%q,consumer_group=~"$consumer_group|"}) and on (%s) (%s)`, labels, ours, labels, firing), legend: "Since"},
		},
		draw: rowsOf([]dashboard.DataTransformerConfig{
			{Id: "merge", Options: map[string]any{}},
			{Id: "organize", Options: map[string]any{
				"excludeByName": map[string]any{"Time": true},
				"renameByName": map[string]any{
					"Value #A": "Severity", "Value #B": "Since", "alertname": "Alert", "cluster": "Cluster",
					"database": "Database", "consumer_group": "Consumer group", "topic": "Topic",
				},
				"indexByName": map[string]any{"Value #A": 0, "alertname": 1, "consumer_group": 2, "topic": 3, "Value #B": 4, "database": 5, "cluster": 6},
			}},
			{Id: "sortBy", Options: map[string]any{
				"fields": map[string]any{}, "sort": []any{map[string]any{"field": "Severity", "desc": true}},
			}},
		}, []column{
			{"Severity", append(coloured(), severity)},
			{"Alert", []dashboard.DynamicConfigValue{width(320), {Id: "links", Value: []dashboard.DashboardLink{{
				Title: "Runbook: ${__value.text}", Type: dashboard.DashboardLinkTypeLink, Icon: "doc",
				Tooltip: "What it means and what to do", Url: cog.ToPtr(base + "/${__value.raw}.md"), Tags: []string{}, TargetBlank: true,
			}}}}},
			{"Since", []dashboard.DynamicConfigValue{width(180), {Id: "unit", Value: "dateTimeAsIso"}, {Id: "noValue", Value: "not known"}}},
		}),
	}
}

// word is what a value is called, and its colour.
type word struct {
	value       int
	text, color string
}

func (w word) result(index int32) dashboard.ValueMappingResult {
	return dashboard.ValueMappingResult{Text: &w.text, Color: &w.color, Index: &index}
}

// verdictMappings show values as words; no value at all is unknown.
func verdictMappings(values ...word) dashboard.DynamicConfigValue {
	options := map[string]dashboard.ValueMappingResult{}
	for i, w := range values {
		options[fmt.Sprint(w.value)] = w.result(int32(i))
	}
	nothing := word{text: words[isUnknown].text, color: unknown}
	return dashboard.DynamicConfigValue{Id: "mappings", Value: []dashboard.ValueMapping{
		{ValueMap: &dashboard.ValueMap{Type: dashboard.MappingTypeValueToText, Options: options}},
		{SpecialValueMap: &dashboard.SpecialValueMap{Type: dashboard.MappingTypeSpecialValue, Options: dashboard.DashboardSpecialValueMapOptions{
			Match: dashboard.SpecialValueMatchNullAndNan, Result: nothing.result(int32(len(values))),
		}}},
	}}
}

// coloured is a cell on a ground of its value's colour.
func coloured() []dashboard.DynamicConfigValue {
	return []dashboard.DynamicConfigValue{
		width(100),
		{Id: "custom.cellOptions", Value: common.TableColoredBackgroundCellOptions{
			Type: common.TableCellDisplayModeColorBackground, Mode: cog.ToPtr(common.TableCellBackgroundDisplayModeBasic),
		}},
		{Id: "custom.align", Value: "center"},
		{Id: "noValue", Value: words[isUnknown].text},
	}
}

// verdictCell shows a verdict as a word on a coloured ground.
func verdictCell() []dashboard.DynamicConfigValue {
	var values []word
	for verdict, w := range words {
		values = append(values, word{verdict, w.text, w.color})
	}
	return append(coloured(), verdictMappings(values...))
}

// overallCell shows a group's trouble as the worst of its verdicts.
func overallCell() []dashboard.DynamicConfigValue {
	cell := verdictCell()
	var ranges []dashboard.ValueMapping
	for verdict, w := range words {
		to := 1e6
		if verdict < isViolated {
			to = weight(verdict+1) - 1
		}
		from := weight(verdict)
		ranges = append(ranges, dashboard.ValueMapping{RangeMap: &dashboard.RangeMap{Type: dashboard.MappingTypeRangeToText, Options: dashboard.DashboardRangeMapOptions{
			From: &from, To: &to, Result: word{text: w.text, color: w.color}.result(int32(verdict)),
		}}})
	}
	last := &cell[len(cell)-1]
	last.Value = append(ranges, last.Value.([]dashboard.ValueMapping)[1])
	return cell
}

// groupLinks lead to the dashboard of the row's consumer group, and to its lines
// on the exporter's own page.
func groupLinks(pageURL string) []dashboard.DynamicConfigValue {
	return []dashboard.DynamicConfigValue{
		{Id: "links", Value: []dashboard.DashboardLink{
			{
				Title: "Why not? ${__value.text}", Type: dashboard.DashboardLinkTypeLink, Icon: "dashboard",
				Tooltip: "This group alone, with its causes",
				Url:     cog.ToPtr("/d/" + groupUID + "?var-consumer_group=${__value.text:percentencode}&${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}&${__url_time_range}"),
				Tags:    []string{},
			},
			{
				Title: "The exporter's page about ${__value.text}", Type: dashboard.DashboardLinkTypeLink, Icon: "external link",
				Tooltip: "The same group's lines with their evidence, as the exporter has read them",
				Url:     cog.ToPtr(pageURL + "/?group=${__value.text:percentencode}"),
				Tags:    []string{}, TargetBlank: true,
			},
		}},
	}
}

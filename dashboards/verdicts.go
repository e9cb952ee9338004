package dashboards

import (
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"oncewatch/alerts"
)

// Colours of a verdict, the same on every dashboard.
const (
	holds    = "green"
	watch    = "orange"
	violated = "red"
	unknown  = "text"
)

// verdictTable is the checklist: one row for each consumer group, one column
// for each item, the group in most trouble first.
func verdictTable(t alerts.Thresholds, height uint32) panel {
	items := []struct{ name, expr string }{
		{"1 Duplicates", duplicateVerdict(t)},
		{"2 Growth", growthVerdict(t)},
		{"3 Retention", retentionVerdict(t)},
		{"4 Latency", latencyVerdict(t)},
		{"5 Offset commit", commitVerdict(t)},
		{"6 Traceable", traceVerdict()},
	}
	var (
		queries []query
		fields  []string // what Grafana calls the queries' values once merged
		columns = []column{{"Consumer group", groupLink()}, {"Worst", verdictCell()}}
		names   = map[string]any{"cluster": "Cluster", "consumer_group": "Consumer group"}
		order   = map[string]any{"cluster": 0, "consumer_group": 1, "Worst": 2}
	)
	for i, item := range items {
		queries = append(queries, query{expr: item.expr, legend: item.name})
		field := "Value #" + refID(i)
		fields = append(fields, field)
		names[field] = item.name
		order[field] = 3 + i
		columns = append(columns, column{item.name, verdictCell()})
	}
	return panel{
		title: "Checklist by consumer group",
		description: fmt.Sprintf(`Every cell should say **holds**. The group in most trouble comes first; its name opens *Why not?* for it.

1. **Duplicates**: at most %s %% of what is handled; violated where most of them carry an id seen at another offset.
2. **Growth**: nothing is left that should have been pruned, the table is within its limit, and what is handled is marked.
3. **Retention**: markers are kept at least %s × as long as the broker keeps records, and no reset could apply a record twice.
4. **Latency**: %s %% of the transactions end within %s ms.
5. **Offset commit**: follows the database commit within %s s, or is at least not falling behind.
6. **Traceable**: every duplicate was traced to the delivery it repeats. (That log lines carry event_id and consumer_group cannot be seen in metrics.)

**unknown**: nothing that is scraped tells. Either its metrics are missing (see the last row of the overview, and the selection above), or it is too early: a table younger than its topic's retention, without a configured retention, proves nothing.`,
			num(100*t.DuplicateRatioMax), num(t.RetentionRatioWarning), num(100*t.LatencyObjective), num(1000*t.LatencyP99), num(t.CommitLagWarning)),
		noData:   "No consumer group is visible: is the exporter scraped, and does the selection above match one?",
		runbooks: []string{"ProcessedEventsRetentionBelowBroker", "ConsumerDuplicateRatioHigh", "ConsumerOffsetCommitLagHigh"},
		width:    gridWidth, height: height,
		queries: queries,
		draw: rowsOf([]dashboard.DataTransformerConfig{
			{Id: "merge", Options: map[string]any{}},
			{Id: "calculateField", Options: map[string]any{
				"mode": "reduceRow", "alias": "Worst",
				"reduce": map[string]any{"reducer": "max", "include": fields},
			}},
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

// verdictCell shows 0, 1 and 2 as a word on a coloured ground.
func verdictCell() []dashboard.DynamicConfigValue {
	word := func(text, color string, index int32) dashboard.ValueMappingResult {
		return dashboard.ValueMappingResult{Text: &text, Color: &color, Index: &index}
	}
	return []dashboard.DynamicConfigValue{
		{Id: "custom.cellOptions", Value: common.TableColoredBackgroundCellOptions{
			Type: common.TableCellDisplayModeColorBackground, Mode: cog.ToPtr(common.TableCellBackgroundDisplayModeBasic),
		}},
		{Id: "custom.align", Value: "center"},
		{Id: "noValue", Value: "unknown"},
		{Id: "mappings", Value: []dashboard.ValueMapping{
			{ValueMap: &dashboard.ValueMap{Type: dashboard.MappingTypeValueToText, Options: map[string]dashboard.ValueMappingResult{
				"0": word("holds", holds, 0), "1": word("watch", watch, 1), "2": word("violated", violated, 2),
			}}},
			{SpecialValueMap: &dashboard.SpecialValueMap{Type: dashboard.MappingTypeSpecialValue, Options: dashboard.DashboardSpecialValueMapOptions{
				Match: dashboard.SpecialValueMatchNullAndNan, Result: word("unknown", unknown, 3),
			}}},
		}},
	}
}

// groupLink opens the dashboard of the row's consumer group.
func groupLink() []dashboard.DynamicConfigValue {
	return []dashboard.DynamicConfigValue{
		{Id: "links", Value: []dashboard.DashboardLink{{
			Title: "Why not? ${__value.text}", Type: dashboard.DashboardLinkTypeLink, Icon: "dashboard",
			Tooltip: "This group alone, with its causes",
			Url:     cog.ToPtr("/d/" + groupUID + "?var-consumer_group=${__value.text:percentencode}&${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}&${__url_time_range}"),
			Tags:    []string{},
		}}},
	}
}

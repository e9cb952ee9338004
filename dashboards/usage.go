package dashboards

import (
	"strings"

	"oncewatch/alerts"
)

// Query is what one panel asks.
type Query struct {
	Panel string // the dashboard's title and its own
	Expr  string // PromQL, with everything selected
}

// Queries are what all panels ask, in order.
func Queries(t alerts.Thresholds) []Query {
	var all []Query
	for _, p := range pages(t, alerts.DefaultRunbookBase) {
		for _, r := range p.rows {
			for _, pan := range r.panels {
				for _, q := range pan.queries {
					all = append(all, Query{strings.TrimPrefix(p.title, "oncewatch / ") + " / " + pan.title, filled(q.expr, "5m", "6h")})
				}
			}
		}
	}
	return all
}

// filled stands in for Grafana: it replaces the variables as Grafana does with
// All selected.
func filled(expr, rateInterval, rangeLength string) string {
	expr = strings.ReplaceAll(expr, "$worst", ".+")
	for _, v := range variables {
		expr = strings.ReplaceAll(expr, "$"+v.name, v.all)
	}
	expr = strings.ReplaceAll(expr, "$__rate_interval", rateInterval)
	return strings.ReplaceAll(expr, "$__range", rangeLength)
}

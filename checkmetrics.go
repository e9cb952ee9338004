package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/relabel"

	"oncewatch/collectors"
	"oncewatch/collectors/conform"
	"oncewatch/collectors/consumer"
	"oncewatch/collectors/httpclient"
)

type checkMetricsCmd struct {
	collectors.Thresholds
	Pages      []string            `arg:"" optional:"" name:"page" help:"Metrics pages: addresses, files, or - for standard input."`
	HTTP       httpclient.Config   `embed:"" prefix:"page."`
	Prometheus consumer.Prometheus `embed:"" prefix:"prometheus."`
	Selector   string              `name:"prometheus.selector" placeholder:"{job=\"x\"}" help:"Which series of that Prometheus are looked at."`
	Map        string              `name:"metrics.map" placeholder:"FILE" type:"path" help:"YAML file of the names and labels under which you export the metrics; what it gives is looked at."`
	Output     string              `default:"text" enum:"text,json" help:"${enum}."`
	Timeout    time.Duration       `default:"30s" help:"Time that reading may take."`
}

// pageFormats are those of a scrape that carry every detail as text.
const pageFormats = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4"

func (c *checkMetricsCmd) Run(ctx context.Context, env *environment) error {
	t, err := c.Load()
	if err != nil {
		return err
	}
	if len(c.Pages) == 0 && c.Prometheus.URL == "" {
		return errors.New("name a page (an address, a file, or - for standard input), or --prometheus.url")
	}
	if err := errors.Join(c.HTTP.Validate("--page."), c.Prometheus.Validate()); err != nil {
		return err
	}
	wanted, err := conform.New(t)
	if err != nil {
		return err
	}
	var mapping *conform.Mapping
	var relabelling []*relabel.Config
	if c.Map != "" {
		if mapping, err = conform.LoadMapping(c.Map); err != nil {
			return err
		}
		if relabelling, err = mapping.Relabelling(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	client, err := httpclient.New(c.HTTP, "--page.")
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	var pages []*conform.Page
	for _, name := range c.Pages {
		p, err := readPage(ctx, client, name, relabelling)
		if err != nil {
			return err
		}
		pages = append(pages, p)
	}
	if c.Prometheus.URL != "" {
		p, err := wanted.ReadStored(ctx, c.Prometheus, c.Selector, mapping, relabelling)
		if err != nil {
			return err
		}
		pages = append(pages, p)
	}
	r := wanted.Judge(pages)
	if c.Output == "json" {
		err = r.JSON(env.stdout)
	} else {
		err = r.Text(env.stdout)
	}
	if err == nil && !r.Conforms {
		return &exitError{code: exitDoesNotHold}
	}
	return err
}

func readPage(ctx context.Context, client *http.Client, name string, relabelling []*relabel.Config) (*conform.Page, error) {
	if strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://") {
		resp, err := httpclient.Get(ctx, client, name, pageFormats)
		if err != nil {
			return nil, err
		}
		defer func() { _ = resp.Body.Close() }()
		return conform.Read(httpclient.Redacted(name), resp.Body, resp.Header.Get("Content-Type"), relabelling)
	}
	in, close, err := open(name)
	if err != nil {
		return nil, fmt.Errorf("read a page: %w", err)
	}
	defer close()
	if name == "-" {
		name = "standard input"
	}
	return conform.Read(name, in, "", relabelling)
}

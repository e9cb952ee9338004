package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"go.yaml.in/yaml/v3"

	"oncewatch/collectors/httpclient"
	"oncewatch/collectors/poll"
)

const (
	// dnsPrefix says that every address of the name is a consumer.
	dnsPrefix = "dns+"
	// maxFile and maxFound bound what a file or a name can make of the exporter.
	maxFile  = 4 << 20
	maxFound = 5000
)

// place is where consumers are found.
type place struct {
	raw  string
	last []string // addresses found there, kept while it cannot be read again
}

// name is the place in errors, without a secret.
func (p *place) name() string {
	if isFile(p.raw) {
		return p.raw
	}
	return httpclient.Redacted(p.raw)
}

// isFile says whether an address names files with targets, as Prometheus'
// file_sd reads them.
func isFile(raw string) bool {
	if strings.Contains(raw, "://") {
		return false
	}
	switch strings.ToLower(filepath.Ext(raw)) {
	case ".json", ".yml", ".yaml":
		return true
	}
	return false
}

// validPlace names an address that cannot be used.
func validPlace(raw string) error {
	if isFile(raw) {
		if strings.ContainsAny(filepath.Dir(raw), "*?[") {
			return fmt.Errorf("--consumer.metrics-url: %q has a pattern in the name of a folder: want one in the file's name only", raw)
		}
		if _, err := filepath.Match(filepath.Base(raw), ""); err != nil {
			return fmt.Errorf("--consumer.metrics-url: %q: %w", raw, err)
		}
		return nil
	}
	u, err := url.Parse(strings.TrimPrefix(raw, dnsPrefix))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("--consumer.metrics-url: %q is not an address: want for example http://consumer-1:10078/metrics, dns+http://consumers:10078/metrics, or a file such as consumers.yml", httpclient.Redacted(raw))
	}
	return nil
}

// find is the addresses at a place now. Where it cannot be read, they are those
// of before, as in Prometheus, beside the error.
func (p *place) find(ctx context.Context, resolver *net.Resolver) ([]string, error) {
	var found []string
	var err error
	switch {
	case isFile(p.raw):
		found, err = readFiles(p.raw)
	case strings.HasPrefix(p.raw, dnsPrefix):
		found, err = resolve(ctx, resolver, strings.TrimPrefix(p.raw, dnsPrefix))
	default:
		found = []string{p.raw}
	}
	if err == nil && len(found) > maxFound {
		err = &poll.KindError{Kind: "malformed", Err: fmt.Errorf("%d consumers are more than %d", len(found), maxFound)}
	}
	if err != nil {
		return p.last, err
	}
	p.last = found
	return found, nil
}

// resolve puts each address of the host in its place.
func resolve(ctx context.Context, resolver *net.Resolver, raw string) ([]string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("the address cannot be used") // validated
	}
	ips, err := resolver.LookupHost(ctx, u.Hostname())
	if err != nil {
		return nil, &poll.KindError{Kind: "unreachable", Err: fmt.Errorf("no address of %s: %w", u.Hostname(), err)}
	}
	var found []string
	for _, ip := range ips {
		one, port := *u, u.Port()
		switch {
		case port != "":
			one.Host = net.JoinHostPort(ip, port)
		case strings.Contains(ip, ":"):
			one.Host = "[" + ip + "]"
		default:
			one.Host = ip
		}
		found = append(found, one.String())
	}
	return found, nil
}

// readFiles reads the targets of all files of a pattern.
func readFiles(pattern string) ([]string, error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, &poll.KindError{Kind: "missing", Err: errors.New("there is no such file")}
	}
	var found []string
	for _, file := range files {
		groups, err := readFile(file)
		if err != nil {
			return nil, &poll.KindError{Kind: "malformed", Err: fmt.Errorf("%s: %w", file, err)}
		}
		for _, g := range groups {
			for _, target := range g.Targets {
				address, err := addressOf(target, g.Labels)
				if err != nil {
					return nil, &poll.KindError{Kind: "malformed", Err: fmt.Errorf("%s: %w", file, err)}
				}
				found = append(found, address)
			}
		}
	}
	return found, nil
}

func readFile(name string) ([]*targetgroup.Group, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	var groups []*targetgroup.Group
	if strings.EqualFold(filepath.Ext(name), ".json") {
		err = json.Unmarshal(text, &groups)
	} else {
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		decoder.KnownFields(true)
		if err = decoder.Decode(&groups); errors.Is(err, io.EOF) {
			err = nil // an empty file has no targets
		}
	}
	switch {
	case err != nil:
		return nil, errors.New("it is no list of targets: want what Prometheus' file_sd reads") // the decoder's error repeats the text
	case slices.Contains(groups, nil):
		return nil, errors.New("one of its groups is empty")
	}
	return groups, nil
}

// addressOf is what Prometheus would scrape.
func addressOf(target, group model.LabelSet) (string, error) {
	label := func(name model.LabelName, or string) string {
		if v, ok := group[name]; ok {
			return string(v)
		}
		return or
	}
	u := url.URL{Scheme: label(model.SchemeLabel, "http"), Host: string(target[model.AddressLabel]), Path: label(model.MetricsPathLabel, "/metrics")}
	query := url.Values{}
	for name, value := range group {
		if param, ok := strings.CutPrefix(string(name), model.ParamLabelPrefix); ok {
			query.Set(param, string(value))
		}
	}
	u.RawQuery = query.Encode()
	if u.Host == "" || strings.ContainsAny(u.Host, "/@? ") || u.Scheme != "http" && u.Scheme != "https" {
		return "", errors.New("one of its targets is no address: want host:port")
	}
	return u.String(), nil
}

// Package config reads a program's settings: flags, environment variables and
// a YAML file, in this order of precedence, all three derived from one struct
// with kong's tags.
//
// A flag --kafka.max-groups is ONCEWATCH_KAFKA_MAX_GROUPS in the environment
// and kafka.max-groups in the file, nested or dotted.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// File is a parsed configuration file: a kong.Resolver of dotted keys.
type File struct {
	path   string
	values map[string]*yaml.Node
	// lists are the top-level keys that are no flags but lists of mappings,
	// such as stores.
	lists map[string][]File
}

// Parse reads a YAML file's text. path is for its errors. listKeys are the
// top-level keys that hold lists of mappings, each with keys of its own.
func Parse(path string, text []byte, listKeys ...string) (*File, error) {
	var doc yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	if err := documents.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, unreadable(path, err)
	}
	var second yaml.Node
	if err := documents.Decode(&second); err != nil && !errors.Is(err, io.EOF) {
		return nil, unreadable(path, err)
	} else if err == nil {
		return nil, fmt.Errorf("%s:%d: a second document begins here, and would not be read", path, second.Line)
	}
	f := &File{path: path, values: map[string]*yaml.Node{}, lists: map[string][]File{}}
	if len(doc.Content) == 0 {
		return f, nil
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return f, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, f.errorAt(root, "want a mapping of keys to values")
	}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if !slices.Contains(listKeys, key.Value) {
			if err := f.flatten("", key, value); err != nil {
				return nil, err
			}
			continue
		}
		if value.Kind != yaml.SequenceNode {
			return nil, f.errorAt(value, "%s: want a list", key.Value)
		}
		if len(value.Content) == 0 {
			return nil, f.errorAt(value, "%s: the list is empty: name at least one, or leave the key out", key.Value)
		}
		for _, item := range value.Content {
			one := File{path: path, values: map[string]*yaml.Node{}}
			if item.Kind != yaml.MappingNode {
				return nil, f.errorAt(item, "%s: want a list of mappings", key.Value)
			}
			for j := 0; j < len(item.Content); j += 2 {
				if err := one.flatten("", item.Content[j], item.Content[j+1]); err != nil {
					return nil, err
				}
			}
			f.lists[key.Value] = append(f.lists[key.Value], one)
		}
	}
	return f, nil
}

// List returns the entries of a list key, each to be resolved by itself.
func (f *File) List(key string) []File { return f.lists[key] }

// flatten collects leaves under dotted keys. Mappings are kept at every level
// too: a flag of a map type takes one whole.
func (f *File) flatten(prefix string, key, value *yaml.Node) error {
	name := prefix + key.Value
	if old, ok := f.values[name]; ok && (old.Kind != yaml.MappingNode || value.Kind != yaml.MappingNode) {
		return f.errorAt(key, "%s is set twice, first in line %d", name, old.Line)
	}
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	f.values[name] = value
	if value.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i < len(value.Content); i += 2 {
		if err := f.flatten(name+".", value.Content[i], value.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (f *File) errorAt(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", f.path, n.Line, fmt.Sprintf(format, args...))
}

// Validate implements kong.Resolver: every key of the file must be a flag of
// some command.
func (f *File) Validate(app *kong.Application) error {
	flags := map[string]*kong.Flag{}
	var collect func(n *kong.Node)
	collect = func(n *kong.Node) {
		for _, flag := range n.Flags {
			// Commands may share a name: what one of them takes is right.
			if old := flags[flag.Name]; old == nil || flag.IsSlice() || flag.IsMap() {
				flags[flag.Name] = flag
			}
		}
		for _, child := range n.Children {
			collect(child)
		}
	}
	collect(app.Node)
	return f.check(flags)
}

func (f *File) check(flags map[string]*kong.Flag) error {
	isMap := func(name string) bool {
		return flags[name] != nil && flags[name].Target.Kind() == reflect.Map
	}
	var names []string
	for name := range f.values {
		names = append(names, name)
	}
	// In the file's order, so that the first mistake is named first.
	slices.SortFunc(names, func(a, b string) int {
		return (f.values[a].Line-f.values[b].Line)*10000 + strings.Compare(a, b)
	})
next:
	for _, name := range names {
		node := f.values[name]
		for parent := name; ; {
			i := strings.LastIndexByte(parent, '.')
			if i < 0 {
				break
			}
			parent = parent[:i]
			if isMap(parent) {
				continue next // the keys of a map are the user's own
			}
		}
		if flag := flags[name]; flag != nil {
			if node.Kind == yaml.MappingNode && !isMap(name) {
				return f.errorAt(node, "%s: want a value, not a mapping", name)
			}
			if node.Kind == yaml.SequenceNode && flag.Target.Kind() != reflect.Slice {
				return f.errorAt(node, "%s: want one value, not a list", name) // kong's error would repeat it
			}
			if err := f.try(flag, node); err != nil {
				return f.errorAt(node, "%s: %s", name, strings.TrimPrefix(err.Error(), "--"+name+": "))
			}
			continue
		}
		if node.Kind == yaml.MappingNode && len(node.Content) > 0 {
			continue // a level of nesting; its leaves are checked themselves
		}
		if near := suggestion(name, flags); near != "" || inSection(name, flags) {
			return f.errorAt(node, "unknown key %s%s", name, near)
		}
		// What looks like no setting at all may be a secret: it is not repeated.
		return f.errorAt(node, "unknown key: is this a configuration file of the program? (%s)", strings.Join(sections(flags), ", "))
	}
	return nil
}

// Resolve implements kong.Resolver. The environment wins over the file, which
// kong would do the other way round.
func (f *File) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	node, ok := f.values[flag.Name]
	if !ok {
		return nil, nil
	}
	for _, env := range flag.Envs {
		if _, set := os.LookupEnv(env); set {
			return nil, nil
		}
	}
	if err := f.try(flag, node); err != nil {
		// kong puts the flag's name before it.
		return nil, f.errorAt(node, "%s", strings.TrimPrefix(err.Error(), "--"+flag.Name+": "))
	}
	return f.value(flag, node), nil
}

// value is a key's value for its flag. Scalars go through the flag's own
// parser, which knows durations such as 8d and expressions with commas,
// whatever YAML takes them for.
func (f *File) value(flag *kong.Flag, node *yaml.Node) any {
	switch {
	case node.Kind == yaml.ScalarNode && node.Tag == "!!null":
		return nil
	case node.Kind == yaml.ScalarNode:
		return node.Value
	case node.Kind == yaml.MappingNode && flag.IsMap():
		m := map[string]any{}
		for i := 0; i < len(node.Content); i += 2 {
			m[node.Content[i].Value] = node.Content[i+1].Value
		}
		return m
	}
	var value any
	if node.Decode(&value) != nil {
		return nil
	}
	return value
}

// unreadable is what YAML says of a text, without what it quotes of it.
func unreadable(path string, err error) error {
	text, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "yaml: "), " '")
	return fmt.Errorf("%s: %s", path, text)
}

// try parses a key's value aside, so that a mistake is reported with the file's
// name and line. What lies deeper than a list or a map of values is none: kong's
// error would show it in Go's syntax.
func (f *File) try(flag *kong.Flag, node *yaml.Node) error {
	first, step := 0, 1
	if node.Kind == yaml.MappingNode {
		first, step = 1, 2 // the values
	}
	for i := first; i < len(node.Content); i += step {
		one := node.Content[i]
		if one.Kind == yaml.AliasNode {
			one = one.Alias
		}
		if one.Kind != yaml.ScalarNode {
			return errors.New("want plain values in it, no list and no mapping")
		}
	}
	value := f.value(flag, node)
	if value == nil {
		return nil
	}
	scan := kong.Scan().PushTyped(value, kong.FlagValueToken)
	return flag.Parse(scan, reflect.New(flag.Target.Type()).Elem())
}

// Decode fills target, a struct with kong's tags, from the file and defaults
// alone: no flags, no environment. It is for the entries of a List.
func (f *File) Decode(target any) error { return decode(target, kong.Resolvers(f)) }

// Defaults fills target, a struct with kong's tags, with its defaults.
func Defaults(target any) error { return decode(target) }

func decode(target any, options ...kong.Option) error {
	parser, err := kong.New(target, append(append(options, kong.NoDefaultHelp()), mappers()...)...)
	if err != nil {
		return err
	}
	_, err = parser.Parse(nil)
	return err
}

// Options are the kong options that every program of this module takes: an
// environment variable for each flag, durations with days.
func Options(envPrefix string) []kong.Option {
	return append(mappers(), kong.DefaultEnvars(envPrefix))
}

func mappers() []kong.Option {
	return []kong.Option{
		kong.TypeMapper(durationType, durationMapper{}),
		kong.TypeMapper(stringsType, mapMapper{}), kong.TypeMapper(mapOfDurationType, mapMapper{}),
	}
}

var durationType = reflect.TypeFor[time.Duration]()

// durationMapper reads ParseDuration's durations; 0 is refused for a flag with
// the tag positive.
type durationMapper struct{}

func (durationMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := ParseDuration(text)
	if err != nil {
		return err
	}
	if d == 0 && ctx.Value.Tag.Has("positive") {
		return errors.New("0 is not a time: leave it out where it is not known")
	}
	target.SetInt(int64(d))
	return nil
}

// ParseDuration reads a Go duration that may start with days: 8d, 1d12h, 90s.
func ParseDuration(text string) (time.Duration, error) {
	bad := func() (time.Duration, error) {
		return 0, fmt.Errorf("invalid duration %q: want for example 15s, 90m or 8d", text)
	}
	rest := text
	var days time.Duration
	if i := strings.IndexByte(text, 'd'); i >= 0 {
		n, err := strconv.ParseFloat(text[:i], 64)
		if err != nil || !(n >= 0 && n <= 36500) { // NaN too
			return bad()
		}
		days, rest = time.Duration(n*24*float64(time.Hour)), text[i+1:]
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		return bad()
	}
	return days + d, nil
}

// FileFlag is the type of --config.file: it is read before the other flags are
// resolved.
type FileFlag string

// BeforeResolve implements kong's hook.
func (f FileFlag) BeforeResolve(k *kong.Kong, ctx *kong.Context, file *Loaded, trace *kong.Path) error {
	path := string(ctx.FlagValue(trace.Flag).(FileFlag))
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return fmt.Errorf("--config.file: %s: %w", path, err)
	}
	parsed, err := Parse(path, text, file.Lists...)
	if err != nil {
		return err
	}
	file.File = parsed
	if err := parsed.Validate(k.Model); err != nil {
		return err
	}
	ctx.AddResolver(parsed)
	return nil
}

// Loaded is where FileFlag leaves the file it read; bind one to the parser.
type Loaded struct {
	// Lists are the program's list keys, such as stores; see Parse.
	Lists []string
	File  *File // nil where there is none
}

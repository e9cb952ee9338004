package config

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// Example writes a configuration file that sets every flag to its default,
// each below its help text. A flag without a default is commented out, with
// its placeholder in the value's place. A section is what stands before the
// first dot of the flags' names; those without one come last.
func Example(flags []*kong.Flag) ([]byte, error) {
	var sections []string
	for _, flag := range flags {
		section, _, dotted := strings.Cut(flag.Name, ".")
		if dotted && !slices.Contains(sections, section) {
			sections = append(sections, section)
		}
	}
	var b bytes.Buffer
	for i, section := range sections {
		if i > 0 {
			b.WriteByte('\n')
		}
		keys, set, err := exampleKeys(section, flags, true)
		if err != nil {
			return nil, err
		}
		if !set { // a key without a value
			section = "# " + section
		}
		fmt.Fprintf(&b, "%s:\n", section)
		for _, line := range keys {
			b.WriteString("  " + line + "\n")
		}
	}
	for _, flag := range flags {
		if strings.Contains(flag.Name, ".") {
			continue
		}
		line, _, err := exampleKey(flag.Name, flag)
		if err != nil {
			return nil, err
		}
		b.WriteByte('\n')
		for _, text := range wrap(flag.Help, 90) {
			b.WriteString("# " + text + "\n")
		}
		b.WriteString(line + "\n")
	}
	return b.Bytes(), nil
}

// ExampleList writes, commented out, a list whose entries have the keys of a
// section.
func ExampleList(list, section string, flags []*kong.Flag) ([]byte, error) {
	keys, _, err := exampleKeys(section, flags, false)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s:\n", list)
	dash := "- "
	for _, line := range keys {
		if strings.HasPrefix(line, "# ") {
			fmt.Fprintf(&b, "#     %s\n", line)
			continue
		}
		fmt.Fprintf(&b, "#   %s%s\n", dash, line)
		dash = "  "
	}
	return b.Bytes(), nil
}

// exampleKeys are the lines of a section's keys, and whether any sets
// anything.
func exampleKeys(section string, flags []*kong.Flag, help bool) (lines []string, set bool, err error) {
	for _, flag := range flags {
		key, ok := strings.CutPrefix(flag.Name, section+".")
		if !ok {
			continue
		}
		line, sets, err := exampleKey(key, flag)
		if err != nil {
			return nil, false, err
		}
		set = set || sets
		if help {
			for _, text := range wrap(flag.Help, 90) {
				lines = append(lines, "# "+text)
			}
		}
		lines = append(lines, line)
	}
	return lines, set, nil
}

// exampleKey is a key's line, and whether it sets anything.
func exampleKey(key string, flag *kong.Flag) (string, bool, error) {
	switch kind := flag.Target.Kind(); {
	case flag.Default != "" && flag.IsSlice():
		value, err := yaml.Marshal(&yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: flag.Default, Tag: "!!str"}}})
		return key + ": " + strings.TrimSpace(string(value)), true, err
	case flag.Default != "" && kind == reflect.String:
		value, err := yaml.Marshal(flag.Default)
		return key + ": " + strings.TrimSpace(string(value)), true, err
	case flag.Default != "": // a number, a duration, true or false
		return key + ": " + flag.Default, true, nil
	case flag.IsBool():
		return key + ": false", true, nil
	case flag.IsSlice():
		return "# " + key + ": [" + placeholder(flag) + "]", false, nil
	case flag.IsMap():
		return "# " + key + ": {KEY: VALUE}", false, nil
	}
	return "# " + key + ": " + placeholder(flag), false, nil
}

func placeholder(flag *kong.Flag) string {
	if flag.PlaceHolder != "" {
		return flag.PlaceHolder
	}
	if flag.Target.Type() == durationType {
		return "DURATION"
	}
	return strings.ToUpper(flag.Name[strings.LastIndexByte(flag.Name, '.')+1:])
}

// wrap breaks a text into lines of at most so many characters.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// The tags of YAML's scalars.
const (
	tagBool   = "!!bool"
	tagInt    = "!!int"
	tagFloat  = "!!float"
	tagString = "!!str"
)

// A format describes how the values of one type of flag are written in YAML, and in the
// syntax of the command line.
type format struct {
	// what names the format in an error.
	what string
	kind yaml.Kind
	// tags are the tags that a scalar may have. A value is encoded with the first.
	tags []string
	// join converts the items of a list, or the pairs of a mapping, to the values of
	// successive calls of pflag.Value.Set. If it is nil, each item is a value.
	join func(items []string) []string
	// split is the reverse of join, for a result of pflag.Value.String.
	split func(value string) []string
}

// formatOf returns the format of a flag, by its type. A type that is not listed is a string.
func formatOf(flag *pflag.Flag) format {
	switch flag.Value.Type() {
	case "bool":
		return format{what: "true or false", kind: yaml.ScalarNode, tags: []string{tagBool}}
	case "int", "int32", "int64", "uint", "Level":
		return format{what: "an integer", kind: yaml.ScalarNode, tags: []string{tagInt}}
	case "float32", "float64":
		return format{what: "a number", kind: yaml.ScalarNode, tags: []string{tagFloat, tagInt}}
	case "quantity":
		return format{what: "a quantity such as 8Gi", kind: yaml.ScalarNode, tags: []string{tagString, tagInt, tagFloat}}
	case "stringSlice":
		return format{what: "a list of strings", kind: yaml.SequenceNode, tags: []string{tagString}, join: joinCSV, split: splitCSV}
	case "stringArray":
		return format{what: "a list of strings", kind: yaml.SequenceNode, tags: []string{tagString}, split: splitCSV}
	case "int32Slice":
		return format{what: "a list of integers", kind: yaml.SequenceNode, tags: []string{tagInt}, split: splitCSV}
	case "namedCertKey":
		return format{what: "a list of strings", kind: yaml.SequenceNode, tags: []string{tagString}, split: splitKeyPairs}
	case "stringToString":
		return format{what: "a mapping of strings", kind: yaml.MappingNode, tags: []string{tagString, tagBool, tagInt, tagFloat}, join: joinCSV, split: splitCSV}
	case "mapStringString", "colonSeparatedMultimapStringString":
		return format{what: "a mapping of strings", kind: yaml.MappingNode, tags: []string{tagString, tagBool, tagInt, tagFloat}, split: splitPairs}
	default:
		return format{what: "a string", kind: yaml.ScalarNode, tags: []string{tagString}}
	}
}

// decode returns the values for successive calls of pflag.Value.Set.
func (f format) decode(node *yaml.Node) ([]string, error) {
	if node.Kind != f.kind {
		return nil, fmt.Errorf("must be %s, not %s", f.what, nameOf(node))
	}
	if f.kind == yaml.ScalarNode {
		return []string{node.Value}, f.checkScalar(node)
	}
	items, err := f.items(node)
	if err != nil || f.join == nil {
		return items, err
	}
	return f.join(items), nil
}

// items returns the scalars of a list, or NAME=VALUE for the pairs of a mapping.
func (f format) items(node *yaml.Node) ([]string, error) {
	var items []string
	if f.kind == yaml.SequenceNode {
		for _, item := range node.Content {
			if err := f.checkScalar(item); err != nil {
				return nil, err
			}
			items = append(items, item.Value)
		}
		return items, nil
	}
	fields, err := pairs(node)
	if err != nil {
		return nil, err
	}
	for _, pair := range fields {
		if err := f.checkScalar(pair.value); err != nil {
			return nil, err
		}
		if strings.ContainsAny(pair.key.Value, "=,") || f.join == nil && strings.Contains(pair.value.Value, ",") {
			return nil, errors.New("must not have = or , in a name or value")
		}
		items = append(items, pair.key.Value+"="+pair.value.Value)
	}
	return items, nil
}

func (f format) checkScalar(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode && slices.Contains(f.tags, node.ShortTag()) {
		return nil
	}
	return fmt.Errorf("must be %s, not %s", f.what, nameOf(node))
}

// nameOf says what a value is.
func nameOf(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch node.ShortTag() {
	case tagString:
		return fmt.Sprintf("the string %q", node.Value)
	case "!!null":
		return "empty"
	default:
		return node.Value
	}
}

// encode returns the YAML of a value that pflag.Value.String has returned.
func (f format) encode(value string) *yaml.Node {
	if f.kind == yaml.ScalarNode {
		return f.scalar(value)
	}
	node := &yaml.Node{Kind: f.kind}
	items := f.split(value)
	if f.kind == yaml.MappingNode {
		slices.Sort(items) // some flags print their pairs in the random order of a map
	}
	for _, item := range items {
		if f.kind == yaml.SequenceNode {
			node.Content = append(node.Content, f.scalar(item))
			continue
		}
		// A feature gate of the default component is printed as :NAME=VALUE, because
		// the component's name is empty.
		name, value, _ := strings.Cut(strings.TrimPrefix(item, ":"), "=")
		key, content := f.scalar(name), f.scalar(value)
		if value == "true" || value == "false" {
			content = &yaml.Node{Kind: yaml.ScalarNode, Value: value}
		}
		node.Content = append(node.Content, key, content)
	}
	return node
}

func (f format) scalar(value string) *yaml.Node {
	node := &yaml.Node{Kind: yaml.ScalarNode, Value: value}
	if f.tags[0] == tagString {
		node.SetString(value)
	}
	return node
}

// joinCSV joins items to one value, which pflag splits again.
func joinCSV(items []string) []string {
	if len(items) == 0 {
		return []string{""}
	}
	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write(items) // a Builder takes every write
	w.Flush()
	return []string{strings.TrimSuffix(b.String(), "\n")}
}

// splitCSV is the reverse of joinCSV. pflag prints the value in brackets.
func splitCSV(value string) []string {
	value = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
	if value == "" {
		return nil
	}
	items, err := csv.NewReader(strings.NewReader(value)).Read()
	if err != nil {
		return []string{value}
	}
	return items
}

// splitKeyPairs splits what cliflag.NamedCertKeyArray prints.
func splitKeyPairs(value string) []string {
	return strings.Split(strings.TrimSuffix(strings.TrimPrefix(value, "["), "]"), ";")
}

// splitPairs splits what cliflag.ConfigurationMap and the feature gates print.
func splitPairs(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
}

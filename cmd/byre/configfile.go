package main

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	cliflag "k8s.io/component-base/cli/flag"
)

// The version and kind of the file.
const (
	configAPIVersion = "byre.dev/v1alpha1"
	configKind       = "ServerConfiguration"
)

// loadConfigFile sets those of flags that the file at path names, except those that are set already. server are all flags that
// a file may name: whichever command reads a file, it refuses what "byre serve" refuses. The error names the file, the
// line and the field.
func loadConfigFile(path string, flags, server *pflag.FlagSet) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	fields, err := parse(data)
	if err == nil {
		err = set(flags, server, fields)
	}
	if err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	return nil
}

// A field is a name of the file with its value.
type field struct{ key, value *yaml.Node }

// errorf makes the error of a field, with its line.
func (f field) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: %s %w", f.key.Line, f.key.Value, fmt.Errorf(format, args...))
}

// parse returns the fields of the file, which must be one YAML document without
// duplicate fields. It checks apiVersion and kind, and leaves them out.
func parse(data []byte) ([]field, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("it must be one YAML document")
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("it must be a mapping that begins with apiVersion: %s and kind: %s", configAPIVersion, configKind)
	}
	all, err := pairs(document.Content[0])
	if err != nil {
		return nil, err
	}
	given := make(map[string]string)
	fields := all[:0]
	for _, f := range all {
		switch f.key.Value {
		case "apiVersion", "kind":
			given[f.key.Value] = f.value.Value
		default:
			fields = append(fields, f)
		}
	}
	if given["apiVersion"] != configAPIVersion {
		return nil, fmt.Errorf("apiVersion must be %s, not %q", configAPIVersion, given["apiVersion"])
	}
	if given["kind"] != configKind {
		return nil, fmt.Errorf("kind must be %s, not %q", configKind, given["kind"])
	}
	return fields, nil
}

// pairs returns the keys and values of a mapping. It refuses a duplicate key.
func pairs(mapping *yaml.Node) ([]field, error) {
	var fields []field
	lines := make(map[string]int)
	for i := 0; i < len(mapping.Content); i += 2 {
		f := field{mapping.Content[i], mapping.Content[i+1]}
		if f.key.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: a name must be a string", f.key.Line)
		}
		if line, twice := lines[f.key.Value]; twice {
			return nil, fmt.Errorf("has %q twice, in lines %d and %d", f.key.Value, line, f.key.Line)
		}
		lines[f.key.Value] = f.key.Line
		fields = append(fields, f)
	}
	return fields, nil
}

// set checks every field before it sets the flags.
func set(flags, server *pflag.FlagSet, fields []field) error {
	values := make([][]string, len(fields))
	for i, f := range fields {
		flag := server.Lookup(f.key.Value)
		if flag == nil {
			return f.errorf("is not a flag of byre serve: see \"byre serve --help\"")
		}
		var err error
		if values[i], err = formatOf(flag).decode(f.value); err != nil {
			return f.errorf("%w", err)
		}
	}
	for i, f := range fields {
		if flag := flags.Lookup(f.key.Value); flag == nil || flag.Changed {
			continue
		}
		for _, value := range values[i] {
			err := flags.Set(f.key.Value, value)
			if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
				err = invalid.Unwrap() // without the value, which the file has
			}
			if err != nil {
				return f.errorf("can't be set: %w", err)
			}
		}
	}
	return nil
}

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

// encodeConfigFile returns the configuration file that sets every flag to its value, in the order
// of the names. It leaves out empty values of flags that are not set. Some defaults are
// written as comments, because a flag that is given excludes others even if it has its
// default value; --authentication-config, for example, excludes the flags of OpenID
// Connect.
func encodeConfigFile(flags *pflag.FlagSet) ([]byte, error) {
	file, tracked := newFile(), new(yaml.Node)
	flags.VisitAll(func(flag *pflag.Flag) {
		mapping := file
		switch {
		case flag.Changed:
		case isEmpty(flag), flag.Hidden, flag.Deprecated != "":
			return
		case isTracked(flag):
			mapping = tracked
		}
		addField(mapping, flag.Name, formatOf(flag).encode(flag.Value.String()))
	})
	fields, err := marshal(file)
	if err != nil || len(tracked.Content) == 0 {
		return fields, err
	}
	comments, err := marshal(tracked)
	if err != nil {
		return nil, err
	}
	fields = append(fields, "# Defaults that exclude other settings when they are given:\n"...)
	for line := range bytes.Lines(comments) {
		fields = append(append(fields, "# "...), line...)
	}
	return fields, nil
}

// encodeChangedFlags returns the configuration file of the flags that are set to another value than their
// default, in the order of the names, each with its source as a comment.
func encodeChangedFlags(flags *pflag.FlagSet, sources map[string]string) ([]byte, error) {
	file := newFile()
	flags.VisitAll(func(flag *pflag.Flag) {
		if !flag.Changed || flag.Value.String() == flag.DefValue && !isTracked(flag) {
			return
		}
		value := formatOf(flag).encode(flag.Value.String())
		value.LineComment = sources[flag.Name]
		if value.Kind != yaml.ScalarNode {
			value.Style = yaml.FlowStyle // in one line with the comment
		}
		addField(file, flag.Name, value)
	})
	return marshal(file)
}

// newFile returns a file without fields of flags.
func newFile() *yaml.Node {
	text := format{kind: yaml.ScalarNode, tags: []string{tagString}}
	file := new(yaml.Node)
	addField(file, "apiVersion", text.scalar(configAPIVersion))
	addField(file, "kind", text.scalar(configKind))
	return file
}

func addField(mapping *yaml.Node, name string, value *yaml.Node) {
	mapping.Kind = yaml.MappingNode
	key := new(yaml.Node)
	key.SetString(name)
	mapping.Content = append(mapping.Content, key, value)
}

func marshal(node *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	err := encoder.Encode(node)
	return b.Bytes(), errors.Join(err, encoder.Close())
}

func isEmpty(flag *pflag.Flag) bool {
	return slices.Contains([]string{"", "[]", "<nil>"}, flag.Value.String())
}

// isTracked reports whether the flag records that it was set.
func isTracked(flag *pflag.Flag) bool {
	value := flag.Value
	if d, ok := value.(interface{ Unwrap() pflag.Value }); ok { // a duration
		value = d.Unwrap()
	}
	switch value.(type) {
	case *cliflag.TrackerValue, *cliflag.BoolTrackerValue:
		return true
	default:
		return false
	}
}

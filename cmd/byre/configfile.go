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

// loadConfigFile sets those of flags that the file at path names, except those that are set already. The file maps
// the name of a flag to its value as on the command line, or to a list of values. server are all flags that a file may
// name: every command refuses an unknown name. The error names the file, the line and the flag.
func loadConfigFile(path string, flags, server *pflag.FlagSet) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if err := setFromFile(data, flags, server); err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	return nil
}

func setFromFile(data []byte, flags, server *pflag.FlagSet) error {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil // nothing, or comments only
	} else if err != nil {
		return err
	}
	mapping := document.Content[0]
	if mapping.Kind != yaml.MappingNode || !errors.Is(decoder.Decode(new(yaml.Node)), io.EOF) {
		return errors.New("it must be one YAML mapping of flags to their values")
	}
	values := make(map[string][]string)
	for i := 0; i < len(mapping.Content); i += 2 {
		key := mapping.Content[i]
		flag := server.Lookup(key.Value)
		if flag == nil {
			return fmt.Errorf("line %d: %s is not a flag of byre serve: see \"byre serve --help\"", key.Line, key.Value)
		}
		if _, twice := values[flag.Name]; twice {
			return fmt.Errorf("line %d: %s is there twice", key.Line, key.Value)
		}
		of, err := decodeValues(flag, mapping.Content[i+1])
		if err != nil {
			return fmt.Errorf("line %d: %s %w", key.Line, key.Value, err)
		}
		values[flag.Name] = of
	}
	for i := 0; i < len(mapping.Content); i += 2 {
		key := mapping.Content[i]
		flag := flags.Lookup(key.Value)
		if flag == nil || flag.Changed {
			continue
		}
		for _, value := range values[flag.Name] {
			err := flags.Set(flag.Name, value)
			if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
				err = invalid.Unwrap() // without the value, which the file has
			}
			if err != nil {
				return fmt.Errorf("line %d: %s can't be set: %w", key.Line, key.Value, err)
			}
		}
	}
	return nil
}

// decodeValues returns the arguments of successive calls of pflag.Value.Set. A scalar is taken as it is written,
// whatever type YAML gives it.
func decodeValues(flag *pflag.Flag, node *yaml.Node) (values []string, err error) {
	items, isCSV := []*yaml.Node{node}, false
	if node.Kind == yaml.SequenceNode {
		items, isCSV = node.Content, flag.Value.Type() == "stringSlice"
	}
	for _, item := range items {
		switch {
		case item.Kind != yaml.ScalarNode || item.ShortTag() == "!!null":
			return nil, errors.New("must have a value, or a list of values")
		case isCSV: // a comma in an item of a list does not end the item
			values = append(values, `"`+strings.ReplaceAll(item.Value, `"`, `""`)+`"`)
		default:
			values = append(values, item.Value)
		}
	}
	if isCSV && len(values) == 0 {
		values = []string{""} // in place of the default
	}
	return values, nil
}

// encodeConfigFile returns the configuration file that sets every flag to its value, in the order of the names. It
// leaves out empty values of flags that are not set. Some defaults are comments, because a flag that is given excludes
// others even if it has its default value; --authentication-config, for example, excludes the flags of OpenID Connect.
func encodeConfigFile(flags *pflag.FlagSet) string {
	var file, comments strings.Builder
	flags.VisitAll(func(flag *pflag.Flag) {
		switch {
		case flag.Changed:
			file.WriteString(encodeFlag(flag, ""))
		case isEmpty(flag), flag.Hidden, flag.Deprecated != "":
		case isTracked(flag):
			comments.WriteString("# " + encodeFlag(flag, ""))
		default:
			file.WriteString(encodeFlag(flag, ""))
		}
	})
	if comments.Len() > 0 {
		file.WriteString("# Defaults that exclude other settings when they are given:\n" + comments.String())
	}
	return file.String()
}

// encodeChangedFlags returns the configuration file of the flags that are set to another value than their default, in
// the order of the names, each with its source as a comment.
func encodeChangedFlags(flags *pflag.FlagSet, sources map[string]string) string {
	var file strings.Builder
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && (flag.Value.String() != flag.DefValue || isTracked(flag)) {
			file.WriteString(encodeFlag(flag, sources[flag.Name]))
		}
	})
	return file.String()
}

// encodeFlag returns the line of a flag.
func encodeFlag(flag *pflag.Flag, comment string) string {
	scalar := func(text string) *yaml.Node {
		node := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
		if node.ShortTag() == "!!null" { // it would be read as no value
			node.SetString(text)
		}
		return node
	}
	value := scalar(flag.Value.String())
	if items, isList := itemsOf(flag); isList {
		value = &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, item := range items {
			value.Content = append(value.Content, scalar(item))
		}
	}
	value.LineComment = comment
	line := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{scalar(flag.Name), value}}
	text, _ := yaml.Marshal(line) // scalars can't fail
	return string(text)
}

// itemsOf splits what pflag.Value.String returns for a flag that takes several values.
func itemsOf(flag *pflag.Flag) (items []string, isList bool) {
	text := flag.Value.String()
	inner := strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	switch kind := flag.Value.Type(); kind {
	case "stringSlice", "stringArray", "int32Slice", "stringToString":
		items, _ = csv.NewReader(strings.NewReader(inner)).Read() // pflag has written it
		if kind == "stringToString" {
			slices.Sort(items) // they are in the random order of a map
		}
	case "namedCertKey":
		items = strings.Split(inner, ";")
	case "mapStringString", "colonSeparatedMultimapStringString":
		for item := range strings.SplitSeq(text, ",") {
			items = append(items, strings.TrimPrefix(item, ":")) // the default component has no name
		}
		slices.Sort(items)
	default:
		return nil, false
	}
	return items, true
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

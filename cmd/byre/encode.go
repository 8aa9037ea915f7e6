package main

import (
	"bytes"
	"errors"
	"slices"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	cliflag "k8s.io/component-base/cli/flag"
)

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

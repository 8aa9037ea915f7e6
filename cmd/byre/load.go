package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
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

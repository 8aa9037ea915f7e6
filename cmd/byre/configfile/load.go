package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// The version and kind of the file.
const (
	APIVersion = "byre.dev/v1alpha1"
	Kind       = "ServerConfiguration"
)

// Load sets the flags that the file at path names, except those that are set already. The error
// names the file, the line and the field.
func Load(path string, flags *pflag.FlagSet) error {
	return load(path, flags, func(f field) error {
		if flags.Lookup(f.key.Value) == nil {
			return f.errorf("is not a flag of byre serve: see \"byre serve --help\"")
		}
		return nil
	})
}

// LoadKnown is Load for a command that has some of the server's flags only: it passes over all
// other fields.
func LoadKnown(path string, flags *pflag.FlagSet) error {
	return load(path, flags, func(field) error { return nil })
}

func load(path string, flags *pflag.FlagSet, check func(field) error) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	fields, err := parse(data)
	for i := 0; err == nil && i < len(fields); i++ {
		err = check(fields[i])
	}
	if err == nil {
		err = set(flags, slices.DeleteFunc(fields, func(f field) bool { return flags.Lookup(f.key.Value) == nil }))
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
		return nil, fmt.Errorf("it must be a mapping that begins with apiVersion: %s and kind: %s", APIVersion, Kind)
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
	if given["apiVersion"] != APIVersion {
		return nil, fmt.Errorf("apiVersion must be %s, not %q", APIVersion, given["apiVersion"])
	}
	if given["kind"] != Kind {
		return nil, fmt.Errorf("kind must be %s, not %q", Kind, given["kind"])
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

// set checks every field, each of which has a flag, before it sets the flags.
func set(flags *pflag.FlagSet, fields []field) error {
	values := make([][]string, len(fields))
	for i, f := range fields {
		var err error
		if values[i], err = formatOf(flags.Lookup(f.key.Value)).decode(f.value); err != nil {
			return f.errorf("%w", err)
		}
	}
	for i, f := range fields {
		if flags.Lookup(f.key.Value).Changed {
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

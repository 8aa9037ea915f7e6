package query

import (
	"iter"

	"byre/apiserver/storage/transcode"
)

// rowsOf yields the values of the columns of an edge, from the fourth on, for each of its rows that is made of one
// object. c is at the object; found has the JSON at each of the edge's paths, nil where there is none.
type rowsOf func(c *edgeCursor, found [][]byte) iter.Seq2[[]any, error]

// membersOf yields the keys and the values of a map of texts.
func membersOf(_ *edgeCursor, found [][]byte) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		for key, value := range transcode.Members(found[0]) {
			if !yield([]any{text([]byte(`"` + key + `"`)), text(value)}, nil) {
				return
			}
		}
	}
}

// listOf yields the values of the columns, by their paths, for each object of a list.
func listOf(c *edgeCursor, found [][]byte) iter.Seq2[[]any, error] {
	columns := c.Columns[edgeOwn:]
	return func(yield func([]any, error) bool) {
		for element := range transcode.Elements(found[0]) {
			values := make([]any, len(columns))
			for key, value := range transcode.Members(element) {
				for i := range columns {
					if column := &columns[i]; column.Path[len(column.Path)-1] == key {
						values[i] = column.Value(value)
					}
				}
			}
			if !yield(values, nil) {
				return
			}
		}
	}
}

// member returns the JSON at a path; nil if there is none.
func member(data []byte, path ...string) []byte {
	for _, name := range path {
		var found []byte
		for s := transcode.NewScanner(data, 0); found == nil && s.NextMember(); {
			is, start := string(s.ReadKey()) == name, s.Pos
			if s.SkipValue(); is {
				found = data[start:s.Pos]
			}
		}
		data = found
	}
	return data
}

// text returns the text that JSON is, or that of a number; nil for other JSON.
func text(data []byte) any { return Text.Value(data) }

// textOf returns the first text that an object has at one of some members; nil if it has none.
func textOf(object []byte, members ...string) any {
	for _, name := range members {
		if s := text(member(object, name)); s != nil {
			return s
		}
	}
	return nil
}

// sources are the types of where variables come from, by the members that name them.
var sources = map[string]string{
	"configMapKeyRef": "configMap", "secretKeyRef": "secret", "fieldRef": "field", "resourceFieldRef": "resource", "fileKeyRef": "file",
	"configMapRef": "configMap", "secretRef": "secret",
}

// envRefsOf yields the variables of the containers of a Pod that come from elsewhere.
func envRefsOf(_ *edgeCursor, found [][]byte) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		for _, containers := range found {
			for container := range transcode.Elements(containers) {
				for values := range envRefsIn(container) {
					if !yield(values, nil) {
						return
					}
				}
			}
		}
	}
}

// envRefsIn yields the values of the columns of container_env_refs for a container.
func envRefsIn(container []byte) iter.Seq[[]any] {
	return func(yield func([]any) bool) {
		name := textOf(container, "name")
		of := func(variable any, references []byte) bool {
			for key, reference := range transcode.Members(references) {
				source, ok := sources[key]
				if !ok {
					continue
				}
				optional := string(member(reference, "optional")) == "true"
				if !yield([]any{name, variable, source, textOf(reference, "name", "containerName", "volumeName"), textOf(reference, "key", "fieldPath", "resource"), optional}) {
					return false
				}
			}
			return true
		}
		for variable := range transcode.Elements(member(container, "env")) {
			if from := member(variable, "valueFrom"); from != nil && !of(textOf(variable, "name"), from) {
				return
			}
		}
		for from := range transcode.Elements(member(container, "envFrom")) {
			if !of(nil, from) {
				return
			}
		}
	}
}

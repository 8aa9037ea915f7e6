package documents

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// swagger is an OpenAPI v2 document as JSON text by path and by definition.
//
// What upstream does: it decodes the documents of all servers, merges the objects and encodes
// the result.
//
// What is done instead: texts are merged. Upstream's code is called only with what is in
// conflict: with both texts of one definition, or with a whole part if a definition of it has
// to be renamed.
//
// What it relies on: upstream's result for one path or definition depends on nothing else in
// the documents. TestMerge_EqualsUpstream compares both.
//
// What it earns: objects take some twenty times the memory of their text, so the document of
// a cluster with many definitions took hundreds of megabytes (BenchmarkMerge).
type swagger struct {
	// rest has the members of the first document that are not merged.
	rest                           members
	paths, definitions, parameters members
	// merged has the texts that definitions were found to equal but for the kinds that they
	// name, by the definition's name and the text.
	merged map[string]bool
}

type members map[string]json.RawMessage

// conflicts returns the names that both have with different values.
func (m members) conflicts(other members) (names []string) {
	for name, value := range other {
		if own, ok := m[name]; ok && !bytes.Equal(own, value) {
			names = append(names, name)
		}
	}
	return names
}

// copyMissing copies what m lacks.
func (m members) copyMissing(other members) {
	for name, value := range other {
		if _, ok := m[name]; !ok {
			m[name] = value
		}
	}
}

// The members of a document that are merged.
const (
	pathsMember       = "paths"
	definitionsMember = "definitions"
	parametersMember  = "parameters"
)

func parseSwagger(document []byte) (*swagger, error) {
	s := &swagger{merged: map[string]bool{}}
	if err := json.Unmarshal(document, &s.rest); err != nil {
		return nil, err
	}
	for name, into := range map[string]*members{pathsMember: &s.paths, definitionsMember: &s.definitions,
		parametersMember: &s.parameters} {
		*into = members{}
		if text, ok := s.rest[name]; ok {
			if err := json.Unmarshal(text, into); err != nil {
				return nil, err
			}
		}
		delete(s.rest, name)
	}
	return s, nil
}

// add merges a document as MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters does.
// The receiver has the first document.
func (s *swagger) add(document []byte) error {
	part, err := parseSwagger(document)
	if err != nil {
		return err
	}
	if len(part.paths) == 0 {
		return nil // as upstream: nothing refers to the definitions
	}
	isNew := true
	for path := range part.paths {
		if _, ok := s.paths[path]; ok {
			isNew = false
		}
	}
	if isNew && len(s.parameters.conflicts(part.parameters)) == 0 {
		if isNew, err = s.mergeDefinitions(part.definitions); err != nil {
			return err
		}
		if isNew {
			s.paths.copyMissing(part.paths)
			s.definitions.copyMissing(part.definitions)
			s.parameters.copyMissing(part.parameters)
			return nil
		}
	}
	return s.addRenaming(part, document)
}

// mergeDefinitions merges the definitions that s has with another text. It returns false if
// one has to be renamed.
func (s *swagger) mergeDefinitions(part members) (bool, error) {
	for _, name := range s.definitions.conflicts(part) {
		key := name + "\n" + string(part[name])
		if s.merged[key] {
			continue
		}
		var own, other spec.Schema
		if err := errors.Join(own.UnmarshalJSON(s.definitions[name]), other.UnmarshalJSON(part[name])); err != nil {
			return false, err
		}
		both := newSpec(spec.Definitions{name: extensible(own)})
		source := newSpec(spec.Definitions{name: other})
		source.Paths.Paths["/"] = spec.PathItem{} // without a path nothing is merged
		if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(both, source); err != nil {
			return false, err
		}
		if len(both.Definitions) > 1 {
			return false, nil
		}
		text, err := both.Definitions[name].MarshalJSON()
		if err != nil {
			return false, err
		}
		s.definitions[name], s.merged[key] = text, true
	}
	return true, nil
}

// addRenaming merges a part with upstream's code, into what of s it may be in conflict with.
func (s *swagger) addRenaming(part *swagger, document []byte) error {
	base, source := &swagger{rest: members{"swagger": s.rest["swagger"]}, paths: members{}}, &spec.Swagger{}
	for path := range part.paths {
		if _, ok := s.paths[path]; ok {
			base.paths[path] = json.RawMessage("{}") // upstream only looks whether it is there
		}
	}
	base.definitions, base.parameters = s.definitions.like(part.definitions), s.parameters.like(part.parameters)
	var text bytes.Buffer
	if err := base.write(&text); err != nil {
		return err
	}
	both := &spec.Swagger{}
	if err := errors.Join(both.UnmarshalJSON(text.Bytes()), source.UnmarshalJSON(document)); err != nil {
		return err
	}
	for name, definition := range both.Definitions {
		both.Definitions[name] = extensible(definition)
	}
	if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(both, source); err != nil {
		return err
	}
	merged, err := both.MarshalJSON()
	if err != nil {
		return err
	}
	result, err := parseSwagger(merged)
	if err != nil {
		return err
	}
	s.paths.copyMissing(result.paths)
	maps.Copy(s.definitions, result.definitions)
	maps.Copy(s.parameters, result.parameters)
	return nil
}

// like returns the members that other has too, and those whose names upstream may give to
// members of other: "name_v2".
func (m members) like(other members) members {
	found := members{}
	for name, value := range m {
		base := name
		if i := strings.LastIndex(name, "_v"); i >= 0 {
			base = name[:i]
		}
		_, same := other[name]
		_, renamed := other[base]
		if same || renamed {
			found[name] = value
		}
	}
	return found
}

// extensible returns the schema with a map of extensions, into which upstream writes.
func extensible(s spec.Schema) spec.Schema {
	if s.Extensions == nil {
		s.Extensions = spec.Extensions{}
	}
	return s
}

func newSpec(definitions spec.Definitions) *spec.Swagger {
	return &spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Definitions: definitions,
		Parameters:  map[string]spec.Parameter{},
		Paths:       &spec.Paths{Paths: map[string]spec.PathItem{}},
	}}
}

// memberOrder is the order of the members in upstream's encoding.
var memberOrder = []string{
	"id", "consumes", "produces", "schemes", "swagger", "info", "host", "basePath", pathsMember, definitionsMember,
	parametersMember, "responses", "securityDefinitions", "security", "tags", "externalDocs",
}

// write writes the document as upstream encodes it.
func (s *swagger) write(w io.Writer) error {
	merged := map[string]members{pathsMember: s.paths, definitionsMember: s.definitions, parametersMember: s.parameters}
	names := append(slices.Sorted(maps.Keys(s.rest)), pathsMember, definitionsMember, parametersMember)
	slices.SortStableFunc(names, func(a, b string) int { return orderOf(a) - orderOf(b) })
	separator := "{"
	for _, name := range names {
		if m, ok := merged[name]; ok {
			if len(m) == 0 && name != pathsMember {
				continue
			}
			if _, err := fmt.Fprintf(w, "%s%q:", separator, name); err != nil {
				return err
			}
			if err := m.write(w); err != nil {
				return err
			}
		} else if _, err := fmt.Fprintf(w, "%s%q:%s", separator, name, s.rest[name]); err != nil {
			return err
		}
		separator = ","
	}
	_, err := io.WriteString(w, "}")
	return err
}

func orderOf(member string) int {
	if i := slices.Index(memberOrder, member); i >= 0 {
		return i
	}
	return len(memberOrder)
}

// write writes the members in the order of their names.
func (m members) write(w io.Writer) error {
	separator := "{"
	for _, name := range slices.Sorted(maps.Keys(m)) {
		key, err := json.Marshal(name)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s%s:%s", separator, key, m[name]); err != nil {
			return err
		}
		separator = ","
	}
	if len(m) == 0 {
		separator = "{}"
	} else {
		separator = "}"
	}
	_, err := io.WriteString(w, separator)
	return err
}

// merge merges the parts of all sources in the order of their names. If several have a
// path, the first one is kept. A part that fails does not prevent the others. The document
// is partial if a part is missing.
func merge(ctx context.Context, sources map[string]Source) (whole *swagger, partial bool, err error) {
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if sources[name].V2 == nil {
			continue
		}
		err := sources[name].V2(ctx, func(document []byte) error {
			if whole == nil {
				first, err := parseSwagger(document)
				whole = first
				return err
			}
			if err := whole.add(document); err != nil {
				klog.FromContext(ctx).Error(err, "Could not merge a part of the OpenAPI v2 document", "source", name)
			}
			return nil
		})
		if err != nil {
			klog.FromContext(ctx).Error(err, "A part of the OpenAPI v2 document is missing", "source", name)
			partial = true
		}
	}
	if whole == nil {
		return nil, false, errNoSources
	}
	return whole, partial, nil
}

var errNoSources = errors.New("openapi: nothing to describe")

// encode compresses the document and computes its hash.
func (s *swagger) encode() (hash string, compressed []byte, err error) {
	var buf bytes.Buffer
	zip, sum := gzip.NewWriter(&buf), sha512.New()
	if err := errors.Join(s.write(io.MultiWriter(zip, sum)), zip.Close()); err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("%X", sum.Sum(nil)), bytes.Clone(buf.Bytes()), nil
}

// An OpenAPI v2 document is encoded as protobuf in pieces.
//
// What upstream does: it parses the whole document to YAML nodes, makes objects of them and
// encodes these.
//
// What is done instead: some paths and definitions at a time are parsed and encoded, and the
// document is put together of their messages.
//
// What it relies on: the numbers of the fields in gnostic's Document, Paths, Definitions and
// ParameterDefinitions. TestProtobufV2_EqualsUpstream compares the bytes.
//
// What it earns: the nodes take a hundred times the memory of the text (BenchmarkMerge,
// TestMerge_TakesLittleMemory).

// pieceBytes is about how much text is parsed at a time, and parsedBytes what a byte of text takes when it is parsed.
const pieceBytes, parsedBytes = 128 << 10, 100

// Fields of openapi.v2.Document, and the field of Paths that is a path. The members of
// Definitions and ParameterDefinitions are field 1.
const (
	fieldPaths       protowire.Number = 8
	fieldDefinitions protowire.Number = 9
	fieldParameters  protowire.Number = 10
	fieldPath        protowire.Number = 2
	fieldMember      protowire.Number = 1
	fieldName        protowire.Number = 1 // of each of them
)

// ToProtobufV2 encodes an OpenAPI v2 document as protobuf.
func ToProtobufV2(text []byte) ([]byte, error) { return toProtobufV2(text, nil, nil) }

// toProtobufV2 is ToProtobufV2, which takes the messages of another document for what both have: lastText, which it
// encoded as last. A change of one definition then takes 0.3 s of processor time, and 1.3 s without.
func toProtobufV2(text, lastText, last []byte) ([]byte, error) {
	whole, err := parseSwagger(text)
	if err != nil {
		return nil, err
	}
	before := &swagger{}
	if last != nil {
		if before, err = parseSwagger(lastText); err != nil {
			return nil, err
		}
	}
	rest, err := whole.piece("", nil)
	if err != nil {
		return nil, err
	}
	rest.Paths = nil
	head, after := proto.Clone(rest).(*openapi_v2.Document), rest
	head.Responses, head.Security, head.SecurityDefinitions = nil, nil, nil
	head.Tags, head.ExternalDocs, head.VendorExtension = nil, nil, nil
	after.Swagger, after.Info, after.Host, after.BasePath = "", nil, "", ""
	after.Schemes, after.Consumes, after.Produces = nil, nil, nil
	out, err := proto.Marshal(head)
	if err != nil {
		return nil, err
	}
	for _, part := range []struct {
		member         string
		values, before members
		field, inside  protowire.Number
	}{
		{pathsMember, whole.paths, before.paths, fieldPaths, fieldPath},
		{definitionsMember, whole.definitions, before.definitions, fieldDefinitions, fieldMember},
		{parametersMember, whole.parameters, before.parameters, fieldParameters, fieldMember},
	} {
		if len(part.values) == 0 && part.member != pathsMember {
			continue
		}
		known, err := messagesIn(last, part.field, part.inside)
		if err != nil {
			return nil, err
		}
		maps.DeleteFunc(known, func(name string, _ []byte) bool {
			return !bytes.Equal(part.before[name], part.values[name])
		})
		messages, err := whole.encodeMembers(part.member, part.values, part.inside, known)
		if err != nil {
			return nil, err
		}
		out = protowire.AppendTag(out, part.field, protowire.BytesType)
		out = protowire.AppendBytes(out, messages)
	}
	tail, err := proto.Marshal(after)
	return append(out, tail...), err
}

// messagesIn returns the messages of a repeated field inside a field of an encoded document, by their names.
func messagesIn(document []byte, field, inside protowire.Number) (map[string][]byte, error) {
	found := map[string][]byte{}
	err := eachField(document, func(number protowire.Number, part []byte) error {
		if number != field {
			return nil
		}
		return eachField(part, func(number protowire.Number, message []byte) error {
			if number != inside {
				return nil
			}
			return eachField(message, func(number protowire.Number, name []byte) error {
				if number == fieldName {
					found[string(name)] = message
				}
				return nil
			})
		})
	})
	return found, err
}

// eachField calls yield with the fields of a message that have a length.
func eachField(message []byte, yield func(number protowire.Number, value []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return protowire.ParseError(n)
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			if err := yield(number, value); err != nil {
				return err
			}
		}
		message = message[n:]
	}
	return nil
}

// encodeMembers encodes the values of a member of the document as a repeated field. It removes what
// it has encoded from values, so that both are not in memory. known has messages that it takes.
func (s *swagger) encodeMembers(
	member string, values members, field protowire.Number, known map[string][]byte,
) (out []byte, err error) {
	add := func(message []byte) {
		out = protowire.AppendBytes(protowire.AppendTag(out, field, protowire.BytesType), message)
	}
	piece, size, garbage := members{}, 0, uint64(0)
	flush := func() error {
		if len(piece) == 0 {
			return nil
		}
		document, err := s.piece(member, piece)
		if err != nil {
			return err
		}
		var named []proto.Message
		for _, m := range document.GetPaths().GetPath() {
			named = append(named, m)
		}
		for _, m := range document.GetDefinitions().GetAdditionalProperties() {
			named = append(named, m)
		}
		for _, m := range document.GetParameters().GetAdditionalProperties() {
			named = append(named, m)
		}
		for _, m := range named {
			message, err := proto.Marshal(m)
			if err != nil {
				return err
			}
			add(message)
		}
		garbage += uint64(size) * parsedBytes
		piece, size = members{}, 0
		// Without this the heap could double before the next collection, by what is parsed. How long a collection takes
		// depends on what lives: in a large heap several pieces share one.
		if garbage >= liveBytes()/8 {
			runtime.GC()
			garbage = 0
		}
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if message, ok := known[name]; ok {
			if err := flush(); err != nil {
				return nil, err
			}
			add(message)
		} else {
			piece[name] = values[name]
			size += len(piece[name])
		}
		delete(values, name)
		if size >= pieceBytes {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	err = flush()
	return out, err
}

// liveBytes returns the size of the heap after the last collection.
func liveBytes() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// piece parses a document that has, of what is merged, only some values of one member.
func (s *swagger) piece(member string, values members) (*openapi_v2.Document, error) {
	document := &swagger{rest: s.rest}
	switch member {
	case pathsMember:
		document.paths = values
	case definitionsMember:
		document.definitions = values
	case parametersMember:
		document.parameters = values
	}
	var text bytes.Buffer
	if err := document.write(&text); err != nil {
		return nil, err
	}
	return openapi_v2.ParseDocument(json.RawMessage(text.Bytes()))
}

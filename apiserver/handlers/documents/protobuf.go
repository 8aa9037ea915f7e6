package documents

import (
	"bytes"
	"encoding/json"
	"maps"
	"runtime"
	"slices"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

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

// pieceBytes is about how much text is parsed at a time.
const pieceBytes = 128 << 10

// Fields of openapi.v2.Document, and the field of Paths that is a path. The members of
// Definitions and ParameterDefinitions are field 1.
const (
	fieldPaths       protowire.Number = 8
	fieldDefinitions protowire.Number = 9
	fieldParameters  protowire.Number = 10
	fieldPath        protowire.Number = 2
	fieldMember      protowire.Number = 1
)

// ToProtobufV2 encodes an OpenAPI v2 document as protobuf.
func ToProtobufV2(text []byte) ([]byte, error) {
	whole, err := parseSwagger(text)
	if err != nil {
		return nil, err
	}
	rest, err := whole.piece("", nil)
	if err != nil {
		return nil, err
	}
	rest.Paths = nil
	before, after := proto.Clone(rest).(*openapi_v2.Document), rest
	before.Responses, before.Security, before.SecurityDefinitions = nil, nil, nil
	before.Tags, before.ExternalDocs, before.VendorExtension = nil, nil, nil
	after.Swagger, after.Info, after.Host, after.BasePath = "", nil, "", ""
	after.Schemes, after.Consumes, after.Produces = nil, nil, nil
	out, err := proto.Marshal(before)
	if err != nil {
		return nil, err
	}
	for _, part := range []struct {
		member        string
		values        members
		field, inside protowire.Number
	}{
		{pathsMember, whole.paths, fieldPaths, fieldPath},
		{definitionsMember, whole.definitions, fieldDefinitions, fieldMember},
		{parametersMember, whole.parameters, fieldParameters, fieldMember},
	} {
		if len(part.values) == 0 && part.member != pathsMember {
			continue
		}
		messages, err := whole.encodeMembers(part.member, part.values, part.inside)
		if err != nil {
			return nil, err
		}
		out = protowire.AppendTag(out, part.field, protowire.BytesType)
		out = protowire.AppendBytes(out, messages)
	}
	tail, err := proto.Marshal(after)
	return append(out, tail...), err
}

// encodeMembers encodes the values of a member of the document as a repeated field. It removes what
// it has encoded from values, so that both are not in memory.
func (s *swagger) encodeMembers(member string, values members, field protowire.Number) (out []byte, err error) {
	piece, size := members{}, 0
	flush := func() error {
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
			out = protowire.AppendBytes(protowire.AppendTag(out, field, protowire.BytesType), message)
		}
		piece, size = members{}, 0
		// Without this the heap could double before the next collection, by what is parsed.
		runtime.GC()
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		piece[name] = values[name]
		delete(values, name)
		if size += len(piece[name]); size >= pieceBytes {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	if len(piece) > 0 {
		err = flush()
	}
	return out, err
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

package query

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/storage/transcode"
)

// Type is the type of a column, as it is declared in SQL: it has the affinity that the values need.
type Type string

// The types. A value that is not of its column's type is NULL.
const (
	Text    Type = "TEXT"
	Integer Type = "INTEGER"
	Real    Type = "REAL"
	// Quantity is a real number, of JSON that is a quantity: in its base unit, cores or bytes.
	Quantity Type = "DOUBLE"
	Boolean  Type = "BOOLEAN"
	// Time is a text, RFC 3339 in UTC.
	Time Type = "DATETIME_TEXT"
	// JSON is a text.
	JSON Type = "JSON_TEXT"
)

// Name returns the name of the type in an answer; it is empty for another text.
func (t Type) Name() string { return typeNames[t] }

var typeNames = map[Type]string{Text: "text", Integer: "integer", Real: "real", Quantity: "real", Boolean: "boolean",
	Time: "time", JSON: "json"}

// Value returns the value of the type that JSON has, which is valid or empty: a string, an int64, a float64, a bool or
// RawJSON; nil for JSON of another type.
func (t Type) Value(json []byte) any { return makers[t](json) }

// Column is a column of a table. It is immutable.
type Column struct {
	Name        string
	Type        Type
	Description string
	// Path are the members that lead from the object to the value; nil for what is not a value of
	// the JSON.
	Path []string
	// make makes the value of the column from the JSON at Path, which is valid.
	make func(json []byte) any
}

// NewColumn returns a column of the value at a path, which has the column's type or is NULL.
func NewColumn(name string, t Type, description string, path ...string) Column {
	return Column{name, t, description, path, makers[t]}
}

// makers make the values of the types.
var makers = map[Type]func([]byte) any{
	Text: scalarText, Integer: integer, Real: number, Quantity: quantity, Boolean: boolean, Time: timestamp,
	JSON: document,
}

// MomentName is the name of MomentColumn.
const MomentName = "_at"

// Value returns the value of the column from the JSON at its path, as Type.Value does; nil if there is none.
func (c *Column) Value(json []byte) any {
	if json == nil || string(json) == "null" {
		return nil
	}
	return c.make(json)
}

// IsHidden reports whether SELECT * leaves the column out.
func (c *Column) IsHidden() bool { return c.Name == MomentName }

// Source is the path as a person writes it: "spec.replicas".
func (c *Column) Source() string { return strings.Join(c.Path, ".") }

// The columns that every table begins with. The feed knows the first ones without the JSON.
const (
	NamespaceColumn = iota
	NameColumn
	RevisionColumn
	MomentColumn
	LabelsColumn = 7
)

func leading() []Column {
	owner := func(member string) Column {
		return Column{"owner_" + member, Text, "The " + member + " of the controller that owns the object.",
			[]string{"metadata", "ownerReferences"}, controller(member)}
	}
	return []Column{
		NamespaceColumn: NewColumn("namespace", Text, "The namespace; empty for an object without one.", "metadata",
			"namespace"),
		NameColumn: NewColumn("name", Text, "The name.", "metadata", "name"),
		RevisionColumn: NewColumn("revision", Integer, "The revision of the last change, which is the resourceVersion.",
			"metadata", "resourceVersion"),
		// The argument of the table as a function: pods('-1h').
		MomentColumn: {Name: MomentName, Type: Text},
		NewColumn("uid", Text, "The UID.", "metadata", "uid"),
		NewColumn("created", Time, "When the object was created.", "metadata", "creationTimestamp"),
		NewColumn("deleted", Time, "When the deletion of the object was asked for; NULL for most objects.", "metadata",
			"deletionTimestamp"),
		LabelsColumn: NewColumn("labels", JSON, "The labels.", "metadata", "labels"),
		NewColumn("annotations", JSON, "The annotations.", "metadata", "annotations"),
		owner("kind"), owner("name"), owner("uid"),
	}
}

// objectColumn is the last column of every table.
var objectColumn = Column{Name: "object", Type: JSON, Description: "The whole object."}

// NewColumns returns the columns of the objects of a schema: those that every table has, those that
// are printed, and the scalars of the schema, down to two members below the object: spec_replicas.
// Members other than spec and status have no prefix if they are values, and are JSON if they are
// lists or maps. definitions are the schemas that a schema may refer to.
func NewColumns(of *spec.Schema, definitions map[string]*spec.Schema, printed []Column) []Column {
	b := columnBuilder{columns: leading(), definitions: definitions}
	for _, c := range printed {
		b.add(c)
	}
	of = b.resolve(of)
	for _, name := range memberNames(of) {
		switch member := b.resolve(property(of, name)); {
		case name == "metadata" || name == "kind" || name == "apiVersion":
		case len(member.Properties) > 0:
			b.addMembers(member, []string{name}, 2)
		default:
			if !b.addScalar(member, property(of, name), []string{name}) && name != "spec" && name != "status" {
				b.add(NewColumn("", JSON, member.Description, name))
			}
		}
	}
	return append(b.columns, objectColumn)
}

// columnBuilder collects columns.
type columnBuilder struct {
	columns     []Column
	definitions map[string]*spec.Schema
}

func (b *columnBuilder) addMembers(of *spec.Schema, path []string, levels int) {
	for _, name := range memberNames(of) {
		member, at := b.resolve(property(of, name)), append(slices.Clone(path), name)
		if len(member.Properties) > 0 {
			if levels > 1 {
				b.addMembers(member, at, levels-1)
			}
			continue
		}
		b.addScalar(member, property(of, name), at)
	}
}

// addScalar adds the columns of a scalar; it returns false for another value. reference is the schema
// that refers to the scalar's.
func (b *columnBuilder) addScalar(of, reference *spec.Schema, path []string) bool {
	c := NewColumn("", "", of.Description, path...)
	if reference.Description != "" {
		c.Description = reference.Description
	}
	switch {
	case isQuantity(of, reference):
		c.Type, c.make = Quantity, quantity
		b.add(c)
		c.Name, c.Type = ColumnName(path...)+"_text", Text
	case of.Type.Contains("string") && of.Format == "date-time":
		c.Type = Time
	case of.Type.Contains("string"), of.Format == "int-or-string", of.Extensions["x-kubernetes-int-or-string"] == true:
		c.Type = Text
	case of.Type.Contains("integer"):
		c.Type = Integer
	case of.Type.Contains("number"):
		c.Type = Real
	case of.Type.Contains("boolean"):
		c.Type = Boolean
	default:
		return false
	}
	c.make = makers[c.Type]
	b.add(c)
	return true
}

// add adds a column under the name of its path, unless the path has a column, or another column has the name.
func (b *columnBuilder) add(c Column) {
	if c.Name == "" {
		c.Name = ColumnName(c.Path...)
	}
	for i := range b.columns {
		other := &b.columns[i]
		samePath := slices.Equal(other.Path, c.Path)
		if samePath && other.Description == "" {
			other.Description = c.Description
		}
		if strings.EqualFold(other.Name, c.Name) || samePath && other.Type == c.Type {
			return
		}
	}
	if c.Name != objectColumn.Name && c.Name != "" {
		b.columns = append(b.columns, c)
	}
}

func (b *columnBuilder) resolve(s *spec.Schema) *spec.Schema {
	for range 8 {
		ref := s.Ref.String()
		if ref == "" && len(s.AllOf) == 1 {
			// A reference with a description beside it.
			ref = s.AllOf[0].Ref.String()
		}
		found := b.definitions[ref[strings.LastIndexByte(ref, '/')+1:]]
		if ref == "" || found == nil {
			break
		}
		s = found
	}
	return s
}

func isQuantity(of, reference *spec.Schema) bool {
	const name = "io.k8s.apimachinery.pkg.api.resource.Quantity"
	if strings.HasSuffix(reference.Ref.String(), name) {
		return true
	}
	return len(reference.AllOf) == 1 && strings.HasSuffix(reference.AllOf[0].Ref.String(), name) || of.Format == "quantity"
}

func memberNames(of *spec.Schema) []string { return slices.Sorted(maps.Keys(of.Properties)) }

func property(of *spec.Schema, name string) *spec.Schema {
	p := of.Properties[name]
	return &p
}

// ColumnName returns the name of a column of a path, or of a printer column: "spec_node_name", "up_to_date".
func ColumnName(path ...string) string {
	var name strings.Builder
	for i, member := range path {
		if i > 0 {
			name.WriteByte('_')
		}
		letters := []rune(member)
		for j, r := range letters {
			upper := unicode.IsUpper(r)
			if upper && j > 0 &&
				(unicode.IsLower(letters[j-1]) || unicode.IsDigit(letters[j-1]) || unicode.IsUpper(letters[j-1]) &&
					j+1 < len(letters) && unicode.IsLower(letters[j+1])) {
				name.WriteByte('_')
			}
			switch {
			case upper:
				name.WriteRune(unicode.ToLower(r))
			case unicode.IsLetter(r), unicode.IsDigit(r):
				name.WriteRune(r)
			default:
				name.WriteByte('_')
			}
		}
	}
	return name.String()
}

// RawJSON is a value that is JSON itself. It shares the memory of the object.
type RawJSON []byte

// The functions below make a value of JSON, which is valid: a string, an int64, a float64, a bool, or
// RawJSON. They return nil for JSON of another type.

func catalogText(data []byte) any {
	if len(data) < 2 || data[0] != '"' {
		return nil
	}
	if bytes.IndexByte(data, '\\') < 0 {
		return string(data[1 : len(data)-1])
	}
	var s string
	if json.Unmarshal(data, &s) != nil {
		return nil
	}
	return s
}

// scalarText is text for a string or a number.
func scalarText(data []byte) any {
	if len(data) > 0 && (data[0] == '-' || data[0] >= '0' && data[0] <= '9') {
		return string(data)
	}
	return catalogText(data)
}

// timestamp returns a time in UTC: a fraction has six digits, as in a MicroTime, so that texts with one are in the
// order of the times.
func timestamp(data []byte) any {
	s, ok := catalogText(data).(string)
	if !ok {
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return nil
	}
	if strings.ContainsAny(s, ".,") {
		return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	}
	return t.UTC().Format(time.RFC3339)
}

func integer(data []byte) any {
	n, err := strconv.ParseInt(string(data), 10, 64)
	if err != nil {
		return nil
	}
	return n
}

func number(data []byte) any {
	if len(data) == 0 || data[0] == '"' {
		return nil
	}
	f, err := strconv.ParseFloat(string(data), 64)
	if err != nil {
		return nil
	}
	return f
}

func boolean(data []byte) any {
	switch string(data) {
	case "true":
		return true
	case "false":
		return false
	}
	return nil
}

// MaxQuantity is more than the length of a quantity in bytes, and than the exponent of one that a float64 has.
const MaxQuantity = 400

// quantity returns a quantity in its base unit, cores or bytes: the float64 that is nearest to it.
func quantity(data []byte) any {
	s, ok := scalarText(data).(string)
	if !ok || len(s) > MaxQuantity || !strings.ContainsAny(s, "0123456789") { // the parser takes "Ki" for 0
		return nil
	}
	// The parser would compute all digits of 1e-2147483648.
	at := strings.LastIndexAny(s, "eE")
	if exponent, err := strconv.Atoi(s[at+1:]); at >= 0 && err == nil && max(exponent, -exponent) > MaxQuantity {
		return nil
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return nil
	}
	f, err := strconv.ParseFloat(q.AsDec().String(), 64)
	if err != nil {
		return nil
	}
	return f
}

func document(data []byte) any { return RawJSON(data) }

// controller returns what makes the value of a member of the controller among owner references.
func controller(member string) func([]byte) any {
	return func(references []byte) any {
		for reference := range transcode.Elements(references) {
			var found []byte
			controls := false
			for key, value := range transcode.Members(reference) {
				switch key {
				case member:
					found = value
				case "controller":
					controls = string(value) == "true"
				}
			}
			if controls {
				return catalogText(found)
			}
		}
		return nil
	}
}

package crd

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/query/catalog"
	"byre/crd/definition"
	"byre/crd/instances"
)

var _ catalog.Tables = (*Server)(nil)

// Names implements catalog.Tables: the definitions are a table, and the instances of each are one under their full
// name.
func (s *Server) Names() []string {
	names := s.ownTables.Names()
	for _, d := range s.resolver.all() {
		names = append(names, catalog.FullName(definition.Resource(d.CRD)))
	}
	return names
}

// Table implements catalog.Tables. Its objects are in the version that they are stored in.
func (s *Server) Table(ctx context.Context, name string) (*catalog.Table, error) {
	if own, err := s.ownTables.Table(ctx, name); own != nil || err != nil {
		return own, err
	}
	for _, d := range s.resolver.all() {
		if catalog.FullName(definition.Resource(d.CRD)) == name {
			return s.resolver.tableOf(ctx, d)
		}
	}
	return nil, nil
}

// all returns the definitions that are established.
func (r *resolver) all() (found []*definition.Definition) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, d := range r.table.All() {
		if definition.IsEstablished(d.CRD) {
			found = append(found, d)
		}
	}
	return found
}

// tableOf returns the table of a definition's instances; nil if the definition is gone.
func (r *resolver) tableOf(ctx context.Context, d *definition.Definition) (*catalog.Table, error) {
	for range maxReplaced {
		found := r.get(d.CRD.Name)
		if found == nil {
			return nil, nil
		}
		stored, err := found.handlers.Stored(ctx)
		if err == nil {
			return newTable(found.Definition, stored)
		}
		if !errors.Is(err, definition.ErrReplaced) {
			return nil, err
		}
		if _, err := r.refresh(ctx, d.CRD.Name); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: %w", d.CRD.Name, definition.ErrReplaced)
}

func newTable(d *definition.Definition, stored *instances.Version) (*catalog.Table, error) {
	schema, err := stored.Schema()
	if err != nil {
		return nil, err
	}
	store, err := stored.Store()
	if err != nil {
		return nil, err
	}
	t := describe(d.CRD, stored.Spec(), schema)
	t.Store = store
	return t, nil
}

// Describe returns the table of a definition that is not stripped, without its Store; nil if the definition is not
// established.
func Describe(crd *apiextensionsv1.CustomResourceDefinition) (*catalog.Table, error) {
	if !definition.IsEstablished(crd) {
		return nil, nil
	}
	stored, err := apihelpers.GetCRDStorageVersion(crd)
	if err != nil {
		return nil, err
	}
	schema, err := instances.NewSchema(crd, stored)
	if err != nil {
		return nil, err
	}
	return describe(crd, definition.Version(crd, stored), schema), nil
}

func describe(crd *apiextensionsv1.CustomResourceDefinition, version *apiextensionsv1.CustomResourceDefinitionVersion, schema *structuralschema.Structural) *catalog.Table {
	of := schema.ToKubeOpenAPI()
	if of == nil {
		of = &spec.Schema{}
	}
	return &catalog.Table{
		Resource: definition.Resource(crd), Version: version.Name, Kind: crd.Spec.Names.Kind, Description: of.Description,
		Columns: catalog.NewColumns(of, nil, printed(version)),
	}
}

// memberPath matches a JSONPath of members only.
var memberPath = regexp.MustCompile(`^(\.[A-Za-z_][A-Za-z0-9_-]*)+$`)

// printed are the printer columns of a version that show a member of the object.
func printed(version *apiextensionsv1.CustomResourceDefinitionVersion) (columns []catalog.Column) {
	types := map[string]catalog.Type{"integer": catalog.Integer, "number": catalog.Real, "boolean": catalog.Boolean, "date": catalog.Time, "string": catalog.Text}
	for _, c := range version.AdditionalPrinterColumns {
		if memberPath.MatchString(c.JSONPath) && !strings.HasPrefix(c.JSONPath, ".metadata.") {
			columns = append(columns, catalog.NewColumn(catalog.ColumnName(c.Name), types[c.Type], c.Description, strings.Split(c.JSONPath[1:], ".")...))
		}
	}
	return columns
}

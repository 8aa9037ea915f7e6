package crd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/query"
	"byre/apiserver/storage/changes"
	"byre/crd/instances"
	"byre/sqlstore"
)

var _ query.Tables = (*Server)(nil)

// Names implements query.Tables: the definitions are a table, and the instances of each are one under their full
// name.
func (s *Server) Names() []string {
	names := s.ownTables.Names()
	for _, d := range s.resolver.all() {
		names = append(names, query.FullName(instances.Resource(d.CRD)))
	}
	return names
}

// Table implements query.Tables. Its objects are in the version that they are stored in, with the columns of the one
// that tableVersion returns.
func (s *Server) Table(ctx context.Context, name string) (*query.Table, error) {
	if own, err := s.ownTables.Table(ctx, name); own != nil || err != nil {
		return own, err
	}
	for _, d := range s.resolver.all() {
		if query.FullName(instances.Resource(d.CRD)) == name {
			return s.resolver.tableOf(ctx, d)
		}
	}
	return nil, nil
}

// TypeOf returns the type of a custom resource's objects of a kind; zero if its definition does not serve the kind.
func (s *Server) TypeOf(ctx context.Context, of sqlstore.Resource, kind schema.GroupVersionKind) changes.Type {
	if found := s.resolver.get(of.Resource + "." + of.Group); found != nil && found.handlers != nil {
		return found.handlers.TypeOf(ctx, kind)
	}
	return changes.Type{}
}

// all returns the definitions that are established.
func (r *resolver) all() []*instances.Definition {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.DeleteFunc(r.table.All(), func(d *instances.Definition) bool { return !instances.IsEstablished(d.CRD) })
}

// tableOf returns the table of a definition's instances; nil if the definition is gone.
func (r *resolver) tableOf(ctx context.Context, d *instances.Definition) (*query.Table, error) {
	for range maxReplaced {
		found := r.get(d.CRD.Name)
		if found == nil {
			return nil, nil
		}
		t, err := newTable(ctx, found.Definition, found.handlers)
		if err == nil {
			return t, nil
		}
		if !errors.Is(err, instances.ErrReplaced) {
			return nil, err
		}
		if _, err := r.refresh(ctx, d.CRD.Name); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: %w", d.CRD.Name, instances.ErrReplaced)
}

func newTable(ctx context.Context, d *instances.Definition, h *instances.Handlers) (*query.Table, error) {
	stored, err := h.Stored(ctx)
	if err != nil {
		return nil, err
	}
	store, err := stored.Store()
	if err != nil {
		return nil, err
	}
	name, err := tableVersion(d.CRD)
	if err != nil {
		return nil, err
	}
	shown, err := h.Version(ctx, name)
	if err != nil {
		return nil, err
	}
	structural, err := shown.Schema()
	if err != nil {
		return nil, err
	}
	t := describe(d.CRD, shown.Spec(), structural)
	t.Store = store
	return t, nil
}

// tableVersion returns the version whose columns a table has: the one that discovery prefers, if all versions are the
// same JSON, and else the one that instances are stored in.
func tableVersion(crd *apiextensionsv1.CustomResourceDefinition) (string, error) {
	var served []string
	for _, v := range crd.Spec.Versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	if c := crd.Spec.Conversion; len(served) > 0 && (c == nil || c.Strategy == apiextensionsv1.NoneConverter) {
		return slices.MaxFunc(served, kubeversion.CompareKubeAwareVersionStrings), nil
	}
	return apihelpers.GetCRDStorageVersion(crd)
}

// Describe returns the table of a definition that is not stripped, without its Store; nil if the definition is not
// established.
func Describe(crd *apiextensionsv1.CustomResourceDefinition) (*query.Table, error) {
	if !instances.IsEstablished(crd) {
		return nil, nil
	}
	version, err := tableVersion(crd)
	if err != nil {
		return nil, err
	}
	structural, err := instances.NewSchema(crd, version)
	if err != nil {
		return nil, err
	}
	return describe(crd, instances.DefinitionVersion(crd, version), structural), nil
}

func describe(
	crd *apiextensionsv1.CustomResourceDefinition, version *apiextensionsv1.CustomResourceDefinitionVersion,
	structural *structuralschema.Structural,
) *query.Table {
	of := cmp.Or(structural.ToKubeOpenAPI(), &spec.Schema{})
	return &query.Table{
		Resource: instances.Resource(crd), Version: version.Name, Kind: crd.Spec.Names.Kind, Description: of.Description,
		Columns: query.NewColumns(of, nil, printed(version)),
	}
}

// memberPath matches a JSONPath of members only.
var memberPath = regexp.MustCompile(`^(\.[A-Za-z_][A-Za-z0-9_-]*)+$`)

// printed are the printer columns of a version that show a member of the object.
func printed(version *apiextensionsv1.CustomResourceDefinitionVersion) (columns []query.Column) {
	types := map[string]query.Type{"integer": query.Integer, "number": query.Real, "boolean": query.Boolean,
		"date": query.Time, "string": query.Text}
	for _, c := range version.AdditionalPrinterColumns {
		if memberPath.MatchString(c.JSONPath) && !strings.HasPrefix(c.JSONPath, ".metadata.") {
			columns = append(columns,
				query.NewColumn(query.ColumnName(c.Name), types[c.Type], c.Description, strings.Split(c.JSONPath[1:], ".")...))
		}
	}
	return columns
}

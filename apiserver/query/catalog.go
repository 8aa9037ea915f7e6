package query

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/handlers"
	"byre/apiserver/storage"
	"byre/apiserver/storage/transcode"
	"byre/sqlstore"
)

// Table is a resource that SQL can ask. It is immutable.
type Table struct {
	// Resource and Version are what the authorizer is asked about.
	Resource schema.GroupResource
	Version  string
	// Kind is the kind of the objects.
	Kind string
	// Description says what the objects are.
	Description string
	// Columns begin with those that every table has; see NewColumns.
	Columns []Column
	// Store has the objects; nil for a resource whose definition is gone, of which there are past ones only.
	Store *storage.Store
	// Gone is that resource.
	Gone sqlstore.Resource
}

// Of identifies the resource to the store.
func (t *Table) Of() sqlstore.Resource {
	if t.Store == nil {
		return t.Gone
	}
	return t.Store.Resource()
}

// Tables finds tables. It is safe for concurrent use.
type Tables interface {
	// Names returns the names of all tables, each in lower case, in any order.
	Names() []string
	// Table returns the table with a name, or nil if there is none any more.
	Table(ctx context.Context, name string) (*Table, error)
}

// maxName is the length of the longest name of a table, in bytes. It is that of PostgreSQL's
// identifiers.
const maxName = 63

// FullName returns the name of the table of a resource that only its group and plural decide:
// "deployments.apps". A name that is too long is cut off, and ends with a hash of the whole.
func FullName(r schema.GroupResource) string {
	name := strings.ToLower(r.String())
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%s~%x", name[:maxName-1-8], sum[:4])
}

// Servers has the Tables of several servers. Where two have a table of one name, the first counts.
type Servers []Tables

// Names implements Tables.
func (s Servers) Names() []string {
	names := map[string]bool{}
	for _, tables := range s {
		for _, name := range tables.Names() {
			names[name] = true
		}
	}
	return slices.Collect(maps.Keys(names))
}

// Table implements Tables.
func (s Servers) Table(ctx context.Context, name string) (*Table, error) {
	for _, tables := range s {
		if table, err := tables.Table(ctx, name); table != nil || err != nil {
			return table, err
		}
	}
	return nil, nil
}

// BuiltinTables are the tables of groups whose types a scheme has.
type BuiltinTables struct {
	resources map[string]builtin // by the names of tables
	// tables makes the tables, with the columns of their schemas, at the first query.
	tables func() (map[string]*Table, error)
}

// builtin is a resource that is a table.
type builtin struct {
	names []string
	store *storage.Store
	kind  schema.GroupVersionKind
}

// NewBuiltinTables makes the tables of groups. A table has the plural as its name, of which the first group
// with such a resource counts, and its full name. stores returns the Store of a resource, or nil; schemas
// returns the schemas of the types by the names by which they refer to each other.
func NewBuiltinTables(
	groups []handlers.Group, stores func(schema.GroupResource) *storage.Store,
	schemas func() (map[string]*spec.Schema, error),
) (*BuiltinTables, error) {
	b := &BuiltinTables{resources: map[string]builtin{}}
	for i := range groups {
		group := &groups[i]
		for _, version := range group.Versions {
			for _, plural := range slices.Sorted(maps.Keys(group.Storage[version])) {
				served := group.Storage[version][plural]
				_, lists := served.(rest.Lister)
				gr := schema.GroupResource{Group: group.Name, Resource: plural}
				store := stores(gr)
				if !lists || store == nil || store.GroupResource() != gr {
					continue // it has no objects, or they are another resource's
				}
				kind, err := endpoints.GetResourceKind(store.StorageVersion(), served, group.Scheme)
				if err != nil {
					return nil, err
				}
				b.add(builtin{[]string{plural, FullName(gr)}, store, kind})
			}
		}
	}
	b.tables = sync.OnceValues(func() (map[string]*Table, error) {
		all, err := schemas()
		if err != nil {
			return nil, err
		}
		return b.makeTables(all)
	})
	return b, nil
}

// add adds a resource under those of its names that are free.
func (b *BuiltinTables) add(r builtin) {
	if _, known := b.resources[r.names[1]]; known {
		return // another version of the resource
	}
	for _, name := range r.names {
		if _, taken := b.resources[name]; !taken {
			b.resources[name] = r
		}
	}
}

func (b *BuiltinTables) makeTables(schemas map[string]*spec.Schema) (map[string]*Table, error) {
	all := NewSchemas(schemas)
	tables, made := map[string]*Table{}, map[*storage.Store]*Table{}
	for name, r := range b.resources {
		if tables[name] = made[r.store]; tables[name] != nil {
			continue
		}
		table := all.Describe(r.store.GroupResource(), r.kind)
		table.Store = r.store
		made[r.store], tables[name] = table, table
	}
	return tables, nil
}

// Schemas are the schemas of kinds.
type Schemas struct {
	definitions map[string]*spec.Schema
	byKind      map[schema.GroupVersionKind]*spec.Schema
}

// NewSchemas returns the schemas of kinds among definitions, which have the names by which they refer to each other.
func NewSchemas(definitions map[string]*spec.Schema) *Schemas {
	s := &Schemas{definitions, map[schema.GroupVersionKind]*spec.Schema{}}
	for _, of := range definitions {
		for _, kind := range kindsOf(of) {
			s.byKind[kind] = of
		}
	}
	return s
}

// Describe returns the table of a built-in resource whose objects are stored as a kind, without its Store.
func (s *Schemas) Describe(gr schema.GroupResource, kind schema.GroupVersionKind) *Table {
	of := cmp.Or(s.byKind[kind], &spec.Schema{}) // none if the version that is stored is not served
	return &Table{
		Resource: gr, Version: kind.Version, Kind: kind.Kind, Description: of.Description,
		Columns: NewColumns(of, s.definitions, printed(gr)),
	}
}

// kindsOf returns the kinds that a schema says it describes.
func kindsOf(s *spec.Schema) (kinds []schema.GroupVersionKind) {
	all, _ := s.Extensions["x-kubernetes-group-version-kind"].([]any)
	for _, each := range all {
		if kind, ok := each.(map[string]any); ok {
			text := func(member string) string { s, _ := kind[member].(string); return s }
			kinds = append(kinds, schema.GroupVersionKind{Group: text("group"), Version: text("version"), Kind: text("kind")})
		}
	}
	return kinds
}

// Names implements Tables.
func (b *BuiltinTables) Names() []string { return slices.Collect(maps.Keys(b.resources)) }

// Table implements Tables.
func (b *BuiltinTables) Table(_ context.Context, name string) (*Table, error) {
	if _, ok := b.resources[name]; !ok {
		return nil, nil
	}
	tables, err := b.tables()
	return tables[name], err
}

// printedColumns are the columns that kubectl get prints of a built-in resource, where they are fields under
// another name: "name=path", of a text, or with # after the name of an integer.
var printedColumns = map[string]string{
	"pods":                                 "phase=status.phase ip=status.podIP node=spec.nodeName nominated_node=status.nominatedNodeName",
	"nodes":                                "unschedulable?=spec.unschedulable kubelet_version=status.nodeInfo.kubeletVersion os_image=status.nodeInfo.osImage kernel_version=status.nodeInfo.kernelVersion container_runtime=status.nodeInfo.containerRuntimeVersion",
	"namespaces":                           "phase=status.phase",
	"services":                             "type=spec.type cluster_ip=spec.clusterIP external_name=spec.externalName",
	"persistentvolumes":                    "phase=status.phase storage_class=spec.storageClassName reclaim_policy=spec.persistentVolumeReclaimPolicy",
	"persistentvolumeclaims":               "phase=status.phase volume=spec.volumeName storage_class=spec.storageClassName",
	"deployments.apps":                     "replicas#=spec.replicas ready#=status.readyReplicas up_to_date#=status.updatedReplicas available#=status.availableReplicas",
	"replicasets.apps":                     "desired#=spec.replicas current#=status.replicas ready#=status.readyReplicas",
	"statefulsets.apps":                    "replicas#=spec.replicas ready#=status.readyReplicas",
	"daemonsets.apps":                      "desired#=status.desiredNumberScheduled current#=status.currentNumberScheduled ready#=status.numberReady up_to_date#=status.updatedNumberScheduled available#=status.numberAvailable",
	"jobs.batch":                           "completions#=spec.completions active#=status.active succeeded#=status.succeeded failed#=status.failed",
	"cronjobs.batch":                       "schedule=spec.schedule timezone=spec.timeZone suspend?=spec.suspend",
	"horizontalpodautoscalers.autoscaling": "min_pods#=spec.minReplicas max_pods#=spec.maxReplicas replicas#=status.currentReplicas",
	"poddisruptionbudgets.policy":          "min_available=spec.minAvailable max_unavailable=spec.maxUnavailable allowed_disruptions#=status.disruptionsAllowed",
	"ingresses.networking.k8s.io":          "class=spec.ingressClassName",
	"leases.coordination.k8s.io":           "holder=spec.holderIdentity",
}

// printed returns the columns that kubectl get prints of a built-in resource.
func printed(r schema.GroupResource) (columns []Column) {
	for field := range strings.FieldsSeq(printedColumns[r.String()]) {
		name, path, _ := strings.Cut(field, "=")
		of := Text
		switch name[len(name)-1] {
		case '#':
			of = Integer
		case '?':
			of = Boolean
		}
		columns = append(columns, NewColumn(strings.TrimRight(name, "#?"), of, "", strings.Split(path, ".")...))
	}
	if r.String() == "pods" {
		containers := []string{"status", "containerStatuses"}
		columns = append(columns,
			Column{"ready", Text, "How many containers are ready, of how many.", containers, func(statuses []byte) any {
				all, ready := countContainers(statuses, "ready", func(value []byte) int64 {
					if string(value) == "true" {
						return 1
					}
					return 0
				})
				return strconv.FormatInt(ready, 10) + "/" + strconv.FormatInt(all, 10)
			}},
			Column{"restarts", Integer, "How often containers were started again.", containers, func(statuses []byte) any {
				_, restarts := countContainers(statuses, "restartCount", func(value []byte) int64 {
					n, _ := integer(value).(int64)
					return n
				})
				return restarts
			}})
	}
	return columns
}

// countContainers returns the number of container statuses, and the sum of what a member of each counts.
func countContainers(statuses []byte, member string, count func([]byte) int64) (all, sum int64) {
	for status := range transcode.Elements(statuses) {
		all++
		for key, value := range transcode.Members(status) {
			if key == member {
				sum += count(value)
			}
		}
	}
	return all, sum
}

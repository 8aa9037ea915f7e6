package query

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
)

// Edge is a table of what an object has several of. It is made of the tables of the objects, and so shows what
// its reader sees of these.
type Edge struct {
	Description string
	// Columns begin with the resource, the namespace and the name of the object, and the moment.
	Columns []Column
	// Tables are those that the edge is made of; nil for all. selects says that it needs the Pods beside.
	Tables  []string
	selects bool
	// about is the path of the name of the object that an object of the table tells of, of which the rows then are;
	// nil if they are of the objects themselves.
	about []string
	// rowsOf makes the rows of an object from the JSON at Paths.
	Paths  [][]string
	rowsOf rowsOf
}

// edges are the edges by their names.
var edges = map[string]Edge{
	"labels":      mapEdge("label", "labels"),
	"annotations": mapEdge("annotation", "annotations"),
	"owners": listEdge("The owners of all objects.", nil, []string{"metadata", "ownerReferences"},
		NewColumn("kind", Text, "The kind of the owner.", "kind"),
		NewColumn("owner", Text, "The name of the owner.", "name"),
		NewColumn("uid", Text, "The UID of the owner.", "uid"),
		NewColumn("controller", Boolean, "Whether the owner controls the object.", "controller"),
	),
	"conditions": listEdge("The conditions in the status of all objects.", nil, []string{"status", "conditions"},
		NewColumn("type", Text, "What the condition is about, such as Ready.", "type"),
		NewColumn("status", Text, "True, False or Unknown.", "status"),
		NewColumn("reason", Text, "Why, in one word.", "reason"),
		NewColumn("message", Text, "Why, for people.", "message"),
		NewColumn("changed", Time, "When the status last changed.", "lastTransitionTime"),
	),
	"containers": {
		Description: "The containers of Pods, with their state.",
		Columns: append(edgeColumns(),
			NewColumn("kind", Text, "main, init or ephemeral."),
			NewColumn("container", Text, "The name of the container."),
			NewColumn("image", Text, "The image that is asked for."),
			NewColumn("cpu_request", Quantity, "In cores; NULL without a request."),
			NewColumn("memory_request", Quantity, "In bytes."),
			NewColumn("cpu_limit", Quantity, "In cores; NULL without a limit."),
			NewColumn("memory_limit", Quantity, "In bytes."),
			NewColumn("state", Text, "waiting, running or terminated; NULL before the kubelet has told."),
			NewColumn("reason", Text, "Why it is in that state, such as CrashLoopBackOff."),
			NewColumn("ready", Boolean, "Whether it passes its readiness probe."),
			NewColumn("restarts", Integer, "How often it was started again."),
		),
		Tables: []string{podsTable},
		Paths:  containerLists,
		rowsOf: containersOf,
	},
	"container_env_refs": {
		Description: "Where the variables of the containers of Pods come from, if not from a text.",
		Columns: append(edgeColumns(),
			NewColumn("container", Text, "The name of the container."),
			NewColumn("variable", Text, "The name of the variable; NULL if all keys of the source become variables."),
			NewColumn("type", Text, "configMap, secret, field, resource or file."),
			NewColumn("source", Text, "The name of the ConfigMap, Secret, container or volume; NULL for the Pod itself."),
			NewColumn("key", Text, "The key or the field; NULL for all keys."),
			NewColumn("optional", Boolean, "Whether the container starts without the source."),
		),
		Tables: []string{podsTable},
		Paths:  containerLists[:3],
		rowsOf: envRefsOf,
	},
	"volumes": {
		Description: "The volumes of Pods. A projected volume has a row for each of its sources besides.",
		Columns: append(edgeColumns(),
			NewColumn("volume", Text, "The name of the volume."),
			NewColumn("type", Text, "Where it comes from: configMap, secret, persistentVolumeClaim, emptyDir, …"),
			NewColumn("source", Text, "The name of the ConfigMap, Secret or claim; NULL for other types."),
		),
		Tables: []string{podsTable},
		Paths:  [][]string{{"spec", "volumes"}},
		rowsOf: volumesOf,
	},
	"selectors": {
		Description: "The Pods that the selector of a workload, Service, PodDisruptionBudget or NetworkPolicy selects.",
		Columns:     append(edgeColumns(), NewColumn("pod", Text, "The name of the Pod, which is in the same namespace.")),
		Tables:      slices.Sorted(maps.Keys(selectorMembers)),
		selects:     true,
		Paths:       [][]string{{"spec"}},
		rowsOf:      selectedOf,
	},
	"events_about": {
		Description: "Events, by the object that they are about.",
		Columns: append([]Column{
			NewColumn("resource", Text, "The resource of the object; NULL for a kind that is not served."),
		}, append(edgeColumns()[edgeNamespace:],
			NewColumn("type", Text, "Normal or Warning."),
			NewColumn("reason", Text, "What has happened, in one word, such as FailedScheduling."),
			NewColumn("message", Text, "What has happened, for people."),
			NewColumn("count", Integer, "How often it has happened."),
			NewColumn("first", Time, "When it happened first."),
			NewColumn("last", Time, "When it happened last."),
			NewColumn("reporter", Text, "The component that has told."),
		)...),
		Tables: []string{"events"},
		about:  []string{"involvedObject", "name"},
		Paths:  eventPaths,
		rowsOf: toldOf,
	},
	"node_taints": listEdge("The taints of Nodes.", []string{"nodes"}, []string{"spec", "taints"},
		NewColumn("key", Text, "The key of the taint.", "key"),
		NewColumn("value", Text, "The value of the taint.", "value"),
		NewColumn("effect", Text, "NoSchedule, PreferNoSchedule or NoExecute.", "effect"),
	),
	"rbac_rules": {
		Description: "What Roles and ClusterRoles allow: a row for each API group, resource and verb of a rule.",
		Columns: append(edgeColumns(),
			NewColumn("api_group", Text, "The API group; * is all."),
			NewColumn("rule_resource", Text, "The resource, or resource/subresource; * is all."),
			NewColumn("verb", Text, "The verb; * is all."),
			NewColumn("resource_names", JSON, "The only objects that the rule is for; NULL for all."),
		),
		Tables: []string{"roles", "clusterroles"},
		Paths:  [][]string{{"rules"}},
		rowsOf: rulesOf,
	},
}

// mapEdge returns the edge of a map of texts in the metadata of all objects.
func mapEdge(what, member string) Edge {
	return Edge{
		Description: "The " + member + " of all objects.",
		Paths:       [][]string{{"metadata", member}},
		rowsOf:      membersOf,
		Columns: append(edgeColumns(),
			NewColumn("key", Text, "The key of the "+what+"."),
			NewColumn("value", Text, "The value of the "+what+"."),
		),
	}
}

// listEdge returns the edge of the list of objects at a path of the objects of tables, with a column for some members.
func listEdge(description string, tables, path []string, members ...Column) Edge {
	for i := range members {
		members[i].Path = append(slices.Clone(path), members[i].Path...)
	}
	return Edge{Description: description, Tables: tables, Paths: [][]string{path}, rowsOf: listOf, Columns: append(edgeColumns(), members...)}
}

func edgeColumns() []Column {
	return []Column{
		NewColumn("resource", Text, "The resource of the object: the shortest name of its table."),
		NewColumn("namespace", Text, "The namespace of the object; empty for an object without one."),
		NewColumn("name", Text, "The name of the object."),
		{Name: MomentName, Type: Text}, // the argument of the edge as a function: labels('-1h')
	}
}

// Edges returns the edges by their names. They are immutable.
func Edges() map[string]Edge { return edges }

// containerLists are the paths of the containers of a Pod, and then of their statuses: main, init and ephemeral ones.
var containerLists = [][]string{
	{"spec", "containers"}, {"spec", "initContainers"}, {"spec", "ephemeralContainers"},
	{"status", "containerStatuses"}, {"status", "initContainerStatuses"}, {"status", "ephemeralContainerStatuses"},
}

// declareEdges makes the edges known that a statement may name, and their functions.
func (e *engine) declareEdges(ctx context.Context, tables Tables, sql string) error {
	known := newResources(ctx, tables)
	if err := e.addFunctions(known); err != nil {
		return err
	}
	for name, edge := range edgesIn(sql) {
		if err := e.declareEdgeTable(name, edge, known); err != nil {
			return err
		}
	}
	return nil
}

// edgesIn yields the edges that a statement may name: an edge that it does name is in its text.
func edgesIn(sql string) iter.Seq2[string, Edge] {
	return func(yield func(string, Edge) bool) {
		sql = strings.ToLower(sql)
		for name, edge := range edges {
			if strings.Contains(sql, name) && !yield(name, edge) {
				return
			}
		}
	}
}

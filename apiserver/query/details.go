package query

import (
	"maps"
	"slices"
)

// DetailTable is a table with a row for each label, container or volume of an object. It is made of the tables of the
// objects, and so shows what its reader sees of these. One description serves the engine of a query, which makes the
// rows from stored JSON, and package sqlviews, which makes a view of the database.
type DetailTable struct {
	Description string
	// Columns begin with the resource, the namespace and the name of the object, and the moment.
	Columns []Column
	// Values are how the values of the columns are found; nil for one of the first columns that is of the object itself,
	// and for the Pod that is selected.
	Values []Value
	// Tables are those that the table is made of; nil for all.
	Tables []string
	// Selectors say how the objects of the Tables select Pods, of which each is a row; nil for other tables.
	Selectors map[string]Selector
	// Alternatives are the steps from the object o to the elements of a row. Each gives rows.
	Alternatives [][]Step
	// Kinds are constants, for each of which there are all Alternatives: $1 stands for the first of them, in the paths
	// of steps and as Source.Constant. Nil is no constants, once.
	Kinds [][]string
}

// Step goes from an element to each element of an array, or each member of an object.
type Step struct {
	// As is the name of the new element, and Of that of the element in which the array or object is, at Path.
	As, Of string
	Path   []string
	// IsObject is true for the members of an object, which have keys.
	IsObject bool
	// Optional makes a row without the element where there is none.
	Optional bool
	// NamedAs is the element whose "name" the new element must have; empty for any name.
	NamedAs string
	// Keys are what the keys of members are called in the table; those of other members are left out. Nil is all, under
	// their keys, but for the key Except.
	Keys   map[string]string
	Except string
}

// Value is how the value of a column is found: at the first Source that has one.
type Value []Source

// Source is where a value may be.
type Source struct {
	// Of is the element in whose JSON the value is, at Path. IsKey says that it is the element's key instead.
	Of    string
	Path  []string
	IsKey bool
	// Key is the key that the element must have; empty for any.
	Key string
	// NotEmpty says that an empty text is no value.
	NotEmpty bool
	// IsResource says that the value is the resource of the apiVersion and kind at Path.
	IsResource bool
	// Constant is the value if Of is empty: a string, an int64 or a bool.
	Constant any
}

// Selector is the member of an object's spec that selects Pods. IsMap says that it is a map of labels, and not a
// LabelSelector.
type Selector struct {
	Member string
	IsMap  bool
}

// The columns that every detail table begins with.
const (
	detailResource = iota
	detailNamespace
	detailName
	detailMoment
	detailOwn // the first of a table's own columns
)

// ownColumn is the first column whose value is not that of the object itself.
func (t *DetailTable) ownColumn() int {
	if t.Values[detailResource] != nil {
		return detailResource
	}
	return detailOwn
}

const podsTable = "pods"

// A Column and its Value.
type valueColumn struct {
	Column
	Value
}

func column(name string, t Type, description string, value ...Source) valueColumn {
	return valueColumn{NewColumn(name, t, description), value}
}

// at is the value at a path of an element.
func at(of string, path ...string) Source { return Source{Of: of, Path: path} }

func keyOf(element string) Source { return Source{Of: element, IsKey: true} }

func constant(value any) Source { return Source{Constant: value} }

// ofKey is a member of the element e if that has a key.
func ofKey(key, member string) Source { return Source{Of: "e", Path: []string{member}, Key: key} }

// withColumns returns a table with the columns of the object and others.
func (t DetailTable) withColumns(columns ...valueColumn) DetailTable {
	t.Columns = []Column{
		NewColumn("resource", Text, "The resource of the object: the shortest name of its table."),
		NewColumn("namespace", Text, "The namespace of the object; empty for an object without one."),
		NewColumn("name", Text, "The name of the object."),
		{Name: MomentName, Type: Text}, // the argument of the table as a function: labels('-1h')
	}
	t.Values = make([]Value, len(t.Columns))
	for _, c := range columns {
		t.Columns, t.Values = append(t.Columns, c.Column), append(t.Values, c.Value)
	}
	return t
}

// mapDetails returns the table of a map of texts in the metadata of all objects.
func mapDetails(what, member string) DetailTable {
	return DetailTable{
		Description:  "The " + member + " of all objects.",
		Alternatives: [][]Step{{{As: "e", Of: "o", Path: []string{"metadata", member}, IsObject: true}}},
	}.withColumns(
		column("key", Text, "The key of the "+what+".", keyOf("e")),
		column("value", Text, "The value of the "+what+".", at("e")),
	)
}

// listDetails returns the table of the list at a path of the objects of tables, with a column for some members.
func listDetails(description string, tables, path []string, members ...Column) DetailTable {
	columns := make([]valueColumn, len(members))
	for i, c := range members {
		columns[i].Value = Value{at("e", c.Path...)}
		c.Path = slices.Concat(path, c.Path)
		columns[i].Column = c
	}
	t := DetailTable{Description: description, Tables: tables, Alternatives: [][]Step{{{As: "e", Of: "o", Path: path}}}}
	return t.withColumns(columns...)
}

// DetailTables returns the detail tables by their names. They are immutable.
func DetailTables() map[string]DetailTable { return detailTables }

var selectors = map[string]Selector{
	"services": {"selector", true}, "replicationcontrollers": {"selector", true},
	"deployments": {"selector", false}, "replicasets": {"selector", false}, "statefulsets": {"selector", false},
	"daemonsets": {"selector", false}, "jobs": {"selector", false}, "poddisruptionbudgets": {"selector", false},
	"networkpolicies": {"podSelector", false},
}

// variableSources are the types of where variables come from, by the members that name them.
var variableSources = map[string]string{
	"configMapKeyRef": "configMap", "secretKeyRef": "secret", "fieldRef": "field", "resourceFieldRef": "resource",
	"fileKeyRef": "file", "configMapRef": "configMap", "secretRef": "secret",
}

var detailTables = map[string]DetailTable{
	"labels":      mapDetails("label", "labels"),
	"annotations": mapDetails("annotation", "annotations"),
	"owners": listDetails("The owners of all objects.", nil, []string{"metadata", "ownerReferences"},
		NewColumn("kind", Text, "The kind of the owner.", "kind"),
		NewColumn("owner", Text, "The name of the owner.", "name"),
		NewColumn("uid", Text, "The UID of the owner.", "uid"),
		NewColumn("controller", Boolean, "Whether the owner controls the object.", "controller"),
	),
	"conditions": listDetails("The conditions in the status of all objects.", nil, []string{"status", "conditions"},
		NewColumn("type", Text, "What the condition is about, such as Ready.", "type"),
		NewColumn("status", Text, "True, False or Unknown.", "status"),
		NewColumn("reason", Text, "Why, in one word.", "reason"),
		NewColumn("message", Text, "Why, for people.", "message"),
		NewColumn("changed", Time, "When the status last changed.", "lastTransitionTime"),
	),
	"containers": DetailTable{
		Description: "The containers of Pods, with their state.",
		Tables:      []string{podsTable},
		Kinds: [][]string{
			{"main", "containers", "containerStatuses"},
			{"init", "initContainers", "initContainerStatuses"},
			{"ephemeral", "ephemeralContainers", "ephemeralContainerStatuses"},
		},
		Alternatives: [][]Step{{
			{As: "c", Of: "o", Path: []string{"spec", "$2"}},
			{As: "s", Of: "o", Path: []string{"status", "$3"}, NamedAs: "c", Optional: true},
			{As: "x", Of: "s", Path: []string{"state"}, IsObject: true, Optional: true},
		}},
	}.withColumns(
		column("kind", Text, "main, init or ephemeral.", constant("$1")),
		column("container", Text, "The name of the container.", at("c", "name")),
		column("image", Text, "The image that is asked for.", at("c", "image")),
		column("cpu_request", Quantity, "In cores; NULL without a request.", at("c", "resources", "requests", "cpu")),
		column("memory_request", Quantity, "In bytes.", at("c", "resources", "requests", "memory")),
		column("cpu_limit", Quantity, "In cores; NULL without a limit.", at("c", "resources", "limits", "cpu")),
		column("memory_limit", Quantity, "In bytes.", at("c", "resources", "limits", "memory")),
		column("state", Text, "waiting, running or terminated; NULL before the kubelet has told.", keyOf("x")),
		column("reason", Text, "Why it is in that state, such as CrashLoopBackOff.", at("x", "reason")),
		column("ready", Boolean, "Whether it passes its readiness probe.", at("s", "ready")),
		column("restarts", Integer, "How often it was started again.", at("s", "restartCount")),
	),
	"container_env_refs": DetailTable{
		Description: "Where the variables of the containers of Pods come from, if not from a text.",
		Tables:      []string{podsTable},
		Kinds:       [][]string{{"containers"}, {"initContainers"}, {"ephemeralContainers"}},
		Alternatives: [][]Step{
			{
				{As: "c", Of: "o", Path: []string{"spec", "$1"}}, {As: "n", Of: "c", Path: []string{"env"}},
				{As: "e", Of: "n", Path: []string{"valueFrom"}, IsObject: true, Keys: variableSources},
			},
			{
				{As: "c", Of: "o", Path: []string{"spec", "$1"}}, {As: "n", Of: "c", Path: []string{"envFrom"}},
				{As: "e", Of: "n", IsObject: true, Keys: variableSources},
			},
		},
	}.withColumns(
		column("container", Text, "The name of the container.", at("c", "name")),
		column("variable", Text, "The name of the variable; NULL if all keys of the source become variables.",
			at("n", "name")),
		column("type", Text, "configMap, secret, field, resource or file.", keyOf("e")),
		column("source", Text, "The name of the ConfigMap, Secret, container or volume; NULL for the Pod itself.",
			at("e", "name"), at("e", "containerName"), at("e", "volumeName")),
		column("key", Text, "The key or the field; NULL for all keys.",
			at("e", "key"), at("e", "fieldPath"), at("e", "resource")),
		column("optional", Boolean, "Whether the container starts without the source.", at("e", "optional"), constant(false)),
	),
	"volumes": DetailTable{
		Description: "The volumes of Pods. A projected volume has a row for each of its sources besides.",
		Tables:      []string{podsTable},
		Alternatives: [][]Step{
			{
				{As: "w", Of: "o", Path: []string{"spec", "volumes"}}, {As: "e", Of: "w", IsObject: true, Except: "name"},
			},
			{
				{As: "w", Of: "o", Path: []string{"spec", "volumes"}}, {As: "x", Of: "w", IsObject: true, Except: "name"},
				{As: "s", Of: "x", Path: []string{"sources"}}, {As: "e", Of: "s", IsObject: true},
			},
		},
	}.withColumns(
		column("volume", Text, "The name of the volume.", at("w", "name")),
		column("type", Text, "Where it comes from: configMap, secret, persistentVolumeClaim, emptyDir, …", keyOf("e")),
		column("source", Text, "The name of the ConfigMap, Secret or claim; NULL for other types.",
			ofKey("configMap", "name"), ofKey("secret", "secretName"), ofKey("secret", "name"),
			ofKey("persistentVolumeClaim", "claimName")),
	),
	"selectors": DetailTable{
		Description: "The Pods that the selector of a workload, Service, PodDisruptionBudget or NetworkPolicy selects.",
		Tables:      slices.Sorted(maps.Keys(selectors)),
		Selectors:   selectors,
	}.withColumns(column("pod", Text, "The name of the Pod, which is in the same namespace.")),
	"events_about": eventsAbout(),
	"node_taints": listDetails("The taints of Nodes.", []string{"nodes"}, []string{"spec", "taints"},
		NewColumn("key", Text, "The key of the taint.", "key"),
		NewColumn("value", Text, "The value of the taint.", "value"),
		NewColumn("effect", Text, "NoSchedule, PreferNoSchedule or NoExecute.", "effect"),
	),
	"rbac_rules": DetailTable{
		Description: "What Roles and ClusterRoles allow: a row for each API group, resource and verb of a rule.",
		Tables:      []string{"roles", "clusterroles"},
		Alternatives: [][]Step{{
			{As: "r", Of: "o", Path: []string{"rules"}}, {As: "g", Of: "r", Path: []string{"apiGroups"}},
			{As: "z", Of: "r", Path: []string{"resources"}}, {As: "b", Of: "r", Path: []string{"verbs"}},
		}},
	}.withColumns(
		column("api_group", Text, "The API group; * is all.", at("g")),
		column("rule_resource", Text, "The resource, or resource/subresource; * is all.", at("z")),
		column("verb", Text, "The verb; * is all.", at("b")),
		column("resource_names", JSON, "The only objects that the rule is for; NULL for all.", at("r", "resourceNames")),
	),
}

// eventsAbout returns the table of Events of the core group, by the object that they are about. Events of events.k8s.io
// are the same objects.
func eventsAbout() DetailTable {
	eventTime, reporter := at("o", "eventTime"), Source{Of: "o", Path: []string{"reportingComponent"}, NotEmpty: true}
	t := DetailTable{
		Description: "Events, by the object that they are about.", Tables: []string{"events"}, Alternatives: [][]Step{nil},
	}.withColumns(
		column("type", Text, "Normal or Warning.", at("o", "type")),
		column("reason", Text, "What has happened, in one word, such as FailedScheduling.", at("o", "reason")),
		column("message", Text, "What has happened, for people.", at("o", "message")),
		column("count", Integer, "How often it has happened.",
			at("o", "count"), at("o", "series", "count"), constant(int64(1))),
		column("first", Time, "When it happened first.", at("o", "firstTimestamp"), eventTime),
		column("last", Time, "When it happened last.",
			at("o", "lastTimestamp"), at("o", "series", "lastObservedTime"), eventTime),
		column("reporter", Text, "The component that has told.", reporter, at("o", "source", "component")),
	)
	t.Columns[detailResource].Description = "The resource of the object; NULL for a kind that is not served."
	t.Values[detailResource] = Value{{Of: "o", Path: []string{"involvedObject"}, IsResource: true}}
	t.Values[detailNamespace] = Value{at("o", "involvedObject", "namespace"), constant("")}
	t.Values[detailName] = Value{at("o", "involvedObject", "name")}
	return t
}

package query

import (
	"iter"
	"strings"

	"github.com/ncruces/go-sqlite3"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// edge is a table of what an object has several of. It is a view over the tables of the objects, and so shows
// what its reader sees of these. Its columns begin with the resource, the namespace and the name of the object.
type edge struct {
	description string
	columns     []Column
	// sql is the SELECT of the view, in the order of the columns.
	sql string
}

// edges are the views, by their names.
var edges = map[string]edge{
	"containers": {
		"The containers of Pods, with their state.",
		append(edgeColumns(),
			NewColumn("kind", Text, "main, init or ephemeral."),
			NewColumn("container", Text, "The name of the container."),
			NewColumn("image", Text, "The image that is asked for."),
			NewColumn("cpu_request", Real, "In cores; NULL without a request."),
			NewColumn("memory_request", Real, "In bytes."),
			NewColumn("cpu_limit", Real, "In cores; NULL without a limit."),
			NewColumn("memory_limit", Real, "In bytes."),
			NewColumn("state", Text, "waiting, running or terminated; NULL before the kubelet has told."),
			NewColumn("reason", Text, "Why it is in that state, such as CrashLoopBackOff."),
			NewColumn("ready", Boolean, "Whether it passes its readiness probe."),
			NewColumn("restarts", Integer, "How often it was started again."),
		),
		containersOf("main", "_containers", "_container_statuses") + " UNION ALL " +
			containersOf("init", "_init_containers", "_init_container_statuses") + " UNION ALL " +
			containersOf("ephemeral", "_ephemeral_containers", "_ephemeral_container_statuses"),
	},
	"volumes": {
		"The volumes of Pods.",
		append(edgeColumns(),
			NewColumn("volume", Text, "The name of the volume."),
			NewColumn("type", Text, "Where it comes from: configMap, secret, persistentVolumeClaim, emptyDir, …"),
			NewColumn("source", Text, "The name of the ConfigMap, Secret or claim; NULL for other types."),
		),
		`SELECT 'pods', p.namespace, p.name, v.value ->> 'name', s.key,
			coalesce(s.value ->> 'claimName', s.value ->> 'secretName', CASE s.key WHEN 'configMap' THEN s.value ->> 'name' END)
		FROM pods p, json_each(p._volumes) v LEFT JOIN json_each(v.value) s ON s.key <> 'name'`,
	},
	"node_taints": {
		"The taints of Nodes.",
		append(edgeColumns(),
			NewColumn("key", Text, "The key of the taint."),
			NewColumn("value", Text, "The value of the taint."),
			NewColumn("effect", Text, "NoSchedule, PreferNoSchedule or NoExecute."),
		),
		`SELECT 'nodes', n.namespace, n.name, t.value ->> 'key', t.value ->> 'value', t.value ->> 'effect'
		FROM nodes n, json_each(n._taints) t`,
	},
	"rbac_rules": {
		"What Roles and ClusterRoles allow: a row for each API group, resource and verb of a rule.",
		append(edgeColumns(),
			NewColumn("api_group", Text, "The API group; * is all."),
			NewColumn("rule_resource", Text, "The resource, or resource/subresource; * is all."),
			NewColumn("verb", Text, "The verb; * is all."),
			NewColumn("resource_names", JSON, "The only objects that the rule is for; NULL for all."),
		),
		rulesOf("roles") + " UNION ALL " + rulesOf("clusterroles"),
	},
}

func edgeColumns() []Column {
	return []Column{
		NewColumn("resource", Text, "The resource of the object."),
		NewColumn("namespace", Text, "The namespace of the object."),
		NewColumn("name", Text, "The name of the object."),
	}
}

// containersOf selects the containers of a kind. A status is that of the container of its name.
func containersOf(kind, containers, statuses string) string {
	return `SELECT 'pods', p.namespace, p.name, '` + kind + `', c.value ->> 'name', c.value ->> 'image',
		quantity(c.value ->> '$.resources.requests.cpu'), quantity(c.value ->> '$.resources.requests.memory'),
		quantity(c.value ->> '$.resources.limits.cpu'), quantity(c.value ->> '$.resources.limits.memory'),
		state.key, state.value ->> 'reason', s.value ->> 'ready', s.value ->> 'restartCount'
	FROM pods p, json_each(p.` + containers + `) c LEFT JOIN json_each(p.` + statuses + `) s ON s.value ->> 'name' = c.value ->> 'name'
		LEFT JOIN json_each(s.value, '$.state') state`
}

func rulesOf(roles string) string {
	return `SELECT '` + roles + `', r.namespace, r.name, g.value, o.value, v.value, rule.value -> 'resourceNames'
	FROM ` + roles + ` r, json_each(r.rules) rule, json_each(rule.value, '$.apiGroups') g,
		json_each(rule.value, '$.resources') o, json_each(rule.value, '$.verbs') v`
}

// hidden returns the columns of a resource that only edges use. SELECT * leaves them out.
func hidden(r schema.GroupResource) (columns []Column) {
	members := map[string][]string{
		"pods": {
			"spec.containers", "spec.initContainers", "spec.ephemeralContainers", "spec.volumes",
			"status.containerStatuses", "status.initContainerStatuses", "status.ephemeralContainerStatuses",
		},
		"nodes": {"spec.taints"},
	}
	for _, member := range members[r.String()] {
		path := strings.Split(member, ".")
		columns = append(columns, NewColumn("_"+ColumnName(path[1]), JSON, "", path...))
	}
	return columns
}

// addEdges makes the edges known that a statement may name, and the function that they convert quantities with.
func (e *engine) addEdges(sql string) error {
	err := e.conn.CreateFunction("quantity", 1, sqlite3.DETERMINISTIC, func(result sqlite3.Context, args ...sqlite3.Value) {
		if value, ok := quantity(appendJSON(nil, args[0].Text())).(float64); ok && args[0].Type() != sqlite3.NULL {
			result.ResultFloat(value)
		}
	})
	for name, edge := range edgesIn(sql) {
		if err != nil {
			return err
		}
		columns := make([]string, len(edge.columns))
		for i, c := range edge.columns {
			columns[i] = quote(c.Name)
		}
		err = e.conn.Exec("CREATE TEMP VIEW " + name + " (" + strings.Join(columns, ", ") + ") AS " + edge.sql)
	}
	return err
}

// edgesIn yields the edges that a statement may name: an edge that it does name is in its text.
func edgesIn(sql string) iter.Seq2[string, edge] {
	return func(yield func(string, edge) bool) {
		sql = strings.ToLower(sql)
		for name, edge := range edges {
			if strings.Contains(sql, name) && !yield(name, edge) {
				return
			}
		}
	}
}

package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/history"
)

// mcpObject names an object.
type mcpObject struct {
	Resource  string `json:"resource" jsonschema:"type of the object, as kubectl knows it, such as deployments, svc or gears.example.com"`
	Name      string `json:"name" jsonschema:"name of the object"`
	Namespace string `json:"namespace,omitempty" jsonschema:"if not set, that of the kubeconfig"`
}

func (t *mcpTools) find(o mcpObject) (Object, error) {
	return t.client.In(o.Namespace).Find([]string{o.Resource, o.Name})
}

type changesInput struct {
	Resource      string `json:"resource,omitempty" jsonschema:"only changes of this type of objects, such as deployments"`
	Name          string `json:"name,omitempty" jsonschema:"only changes of the object with this name; needs resource"`
	Namespace     string `json:"namespace,omitempty" jsonschema:"if not set, that of the kubeconfig; the changes of objects without a namespace are in default"`
	AllNamespaces bool   `json:"allNamespaces,omitempty" jsonschema:"the changes of all namespaces, for users who may list them there"`
	Since         string `json:"since,omitempty" jsonschema:"only changes of this time, such as 2h or 3d"`
	Who           string `json:"who,omitempty" jsonschema:"only changes of this user"`
	Status        bool   `json:"status,omitempty" jsonschema:"the changes of the status too, which controllers and kubelets make"`
	Limit         int    `json:"limit,omitempty" jsonschema:"number of changes at most; there is a smaller bound for all answers"`
}

type changesOutput struct {
	Changes    []mcpChange `json:"changes"`
	Incomplete string      `json:"incomplete,omitempty"`
}

type mcpChange struct {
	Revision  int64     `json:"revision"`
	Time      time.Time `json:"time"`
	Who       string    `json:"who"`
	RealUser  string    `json:"realUser,omitempty"`
	Verb      string    `json:"verb"`
	Manager   string    `json:"manager,omitempty"`
	Object    string    `json:"object"`
	Namespace string    `json:"namespace,omitempty"`
	// Changed has the first fields that an update changed, and MoreChanged is how many others there are.
	Changed     []history.FieldChange `json:"changed,omitempty"`
	MoreChanged int64                 `json:"moreChanged,omitempty"`
}

func newMCPChange(c *history.Change) mcpChange {
	resource := schema.GroupResource{Group: c.Object.Group, Resource: c.Object.Resource}
	return mcpChange{
		Revision: c.Revision, Time: c.Time.UTC(), Who: c.Who, RealUser: c.RealUser,
		Verb: path.Join(c.Verb, c.Subresource), Manager: c.Manager,
		Object: resource.String() + "/" + c.Object.Name, Namespace: c.Object.Namespace,
		Changed: c.Changed, MoreChanged: c.MoreChanged,
	}
}

func (t *mcpTools) changes(ctx context.Context, _ *mcp.CallToolRequest, in changesInput) (*mcp.CallToolResult, any, error) {
	client := t.client.In(in.Namespace)
	query, err := changesQuery(client, &in)
	if err != nil {
		return nil, nil, err
	}
	after := time.Time{}
	if in.Since != "" {
		if after, err = parseSince(in.Since); err != nil {
			return nil, nil, err
		}
		query.Fields["since"] = after.UTC().Format(time.RFC3339)
	}
	found, more, err := client.Newest(ctx, query, t.atMost(in.Limit))
	missing := ""
	if in.Since != "" && apierrors.IsResourceExpired(err) {
		missing = "not all changes are there any more: " + err.Error()
		delete(query.Fields, "since")
		found, more, err = client.Newest(ctx, query, t.atMost(in.Limit))
	}
	if err != nil {
		return nil, nil, err
	}
	items := []mcpChange{}
	for i := range found {
		if !found[i].Time.Time.Before(after) {
			if t.secrets.show {
				if err := client.ShowSecrets(ctx, &found[i]); err != nil {
					return nil, nil, err
				}
			}
			items = append(items, newMCPChange(&found[i]))
		}
	}
	out := changesOutput{}
	out.Changes, out.Incomplete, err = fit(items, more, t.limits)
	out.Incomplete = cmp.Or(out.Incomplete, missing)
	return nil, out, err
}

// changesQuery selects the changes that are asked for, but for their time.
func changesQuery(client *Client, in *changesInput) (Query, error) {
	query := Query{Namespace: client.Namespace(), Fields: fields.Set{}, WithStatus: in.Status}
	switch {
	case in.Resource != "":
		o, err := client.Find([]string{in.Resource, cmp.Or(in.Name, "-")}) // any name: the object need not exist
		if err != nil {
			return query, err
		}
		query = o.Query(in.Status)
		if in.Name == "" {
			delete(query.Fields, "object.name")
		}
	case in.Name != "":
		return query, errors.New("name the resource of the object too")
	}
	if in.AllNamespaces {
		query.Namespace = ""
	}
	if in.Who != "" {
		query.Fields["who"] = in.Who
	}
	return query, nil
}

type diffInput struct {
	mcpObject

	At string `json:"at,omitempty" jsonschema:"first moment: a revision, a time of RFC 3339, or one before now such as -2h; if not set, before the last change"`
	To string `json:"to,omitempty" jsonschema:"second moment; if not set, now"`
}

type diffOutput struct {
	// From and To are revisions; 0 if the history does not have them.
	From       int64                 `json:"from"`
	To         int64                 `json:"to"`
	Changed    []history.FieldChange `json:"changed"`
	Incomplete string                `json:"incomplete,omitempty"`
}

func (t *mcpTools) diff(ctx context.Context, _ *mcp.CallToolRequest, in diffInput) (*mcp.CallToolResult, any, error) {
	o, err := t.find(in.mcpObject)
	if err != nil {
		return nil, nil, err
	}
	older, newer, err := compareMoments(ctx, t.client, o, in.At, in.To)
	if err != nil {
		return nil, nil, err
	}
	older.Content, newer.Content = t.secrets.mask(o, older.Content, newer.Content)
	text, err := diff(o, older, newer)
	if err != nil {
		return nil, nil, err
	}
	changed, err := history.Compare(older.Content, newer.Content)
	if err != nil {
		return nil, nil, err
	}
	out := diffOutput{From: older.Revision, To: newer.Revision}
	if out.Changed, out.Incomplete, err = fit(changed, false, t.limits); err != nil {
		return nil, nil, err
	}
	text, incomplete := t.cut(cmp.Or(text, "there is no difference"))
	return textResult(text, incomplete), out, nil
}

type showInput struct {
	mcpObject

	At string `json:"at,omitempty" jsonschema:"moment: a revision, a time of RFC 3339, or one before now such as -2h; if not set, now"`
}

type showOutput struct {
	Revision   int64  `json:"revision,omitempty"`
	YAML       string `json:"yaml"`
	Incomplete string `json:"incomplete,omitempty"`
}

func (t *mcpTools) show(ctx context.Context, _ *mcp.CallToolRequest, in showInput) (*mcp.CallToolResult, any, error) {
	moment, when := latest(), "this moment"
	if in.At != "" {
		var err error
		if moment, err = ParseMoment(in.At); err != nil {
			return nil, nil, err
		}
		when = moment.String()
	}
	o, err := t.find(in.mcpObject)
	if err != nil {
		return nil, nil, err
	}
	v, err := t.client.At(ctx, o, moment)
	if err != nil {
		return nil, nil, err
	}
	if v.Content == nil {
		return nil, nil, fmt.Errorf("%s does not exist at %s", o, when)
	}
	_, v.Content = t.secrets.mask(o, nil, v.Content)
	text, err := v.YAML()
	if err != nil {
		return nil, nil, err
	}
	out := showOutput{Revision: v.Revision}
	out.YAML, out.Incomplete = t.cut(text)
	return textResult(out.YAML, out.Incomplete), out, nil
}

type blameOutput struct {
	Fields     []blamedField `json:"fields"`
	Incomplete string        `json:"incomplete,omitempty"`
}

// blamedField is a field with the change that gave it its value. Without one it is older than the history,
// which begins at the revision Since.
type blamedField struct {
	Path     string     `json:"path"`
	Value    any        `json:"value"`
	Revision int64      `json:"revision,omitempty"`
	Time     *time.Time `json:"time,omitempty"`
	Who      string     `json:"who,omitempty"`
	Manager  string     `json:"manager,omitempty"`
	Since    int64      `json:"since,omitempty"`
}

func (t *mcpTools) blame(ctx context.Context, _ *mcp.CallToolRequest, in mcpObject) (*mcp.CallToolResult, any, error) {
	o, err := t.find(in)
	if err != nil {
		return nil, nil, err
	}
	leaves, err := t.client.Blame(ctx, o, t.secrets.show)
	if err != nil {
		return nil, nil, err
	}
	blamed := make([]blamedField, len(leaves))
	for i, leaf := range leaves {
		blamed[i] = blamedField{Path: leaf.Path, Value: leaf.Value, Since: leaf.Since}
		if c := leaf.Change; c != nil {
			blamed[i].Revision, blamed[i].Time, blamed[i].Who, blamed[i].Manager = c.Revision, new(c.Time.UTC()), c.Who, c.Manager
		}
	}
	// The fields that were set last come first: they are what is asked for, and the least that may be cut off.
	slices.SortStableFunc(blamed, func(a, b blamedField) int { return cmp.Compare(b.Revision, a.Revision) })
	out := blameOutput{}
	out.Fields, out.Incomplete, err = fit(blamed, false, t.limits)
	return nil, out, err
}

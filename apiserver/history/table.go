package history

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// shownFields is how many changed fields a row of a table shows.
const shownFields = 3

// ChangedColumn is the name of the column that has the Summary of a Change.
const ChangedColumn = "Changed"

var columns = []metav1.TableColumnDefinition{
	{Name: "Revision", Type: "string", Format: "name", Description: "The revision that the change gave to the object."},
	{Name: "Age", Type: "string", Description: "How long ago the change was made."},
	{Name: "Who", Type: "string", Description: "The user who made the change."},
	{Name: "Verb", Type: "string", Description: "The verb of the request, and its subresource."},
	{Name: "Object", Type: "string", Description: "The object that was changed."},
	{Name: ChangedColumn, Type: "string", Description: "The first fields that were changed."},
	{Name: "Real User", Type: "string", Priority: 1, Description: "The user who impersonated the user."},
	{Name: "Manager", Type: "string", Priority: 1, Description: "The field manager of the request."},
	{Name: "Audit ID", Type: "string", Priority: 1, Description: "The ID of the request in the audit log."},
}

// ConvertToTable implements rest.TableConvertor.
func (*Storage) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || o == nil || !o.NoHeaders {
		table.ColumnDefinitions = columns
	}
	var items []Change
	switch object := object.(type) {
	case *ChangeList:
		table.ResourceVersion, table.Continue = object.ResourceVersion, object.Continue
		items = object.Items
	case *Change:
		table.ResourceVersion = object.ResourceVersion
		items = []Change{*object}
	default:
		return nil, fmt.Errorf("%T is no change", object)
	}
	table.Rows = make([]metav1.TableRow, 0, len(items))
	for i := range items {
		table.Rows = append(table.Rows, items[i].row())
	}
	return table, nil
}

func (c *Change) row() metav1.TableRow {
	verb := c.Verb
	if c.Subresource != "" {
		verb += "/" + c.Subresource
	}
	object := c.Object.Resource
	if c.Object.Group != "" {
		object += "." + c.Object.Group
	}
	return metav1.TableRow{
		Cells: []any{
			c.Name, duration.HumanDuration(time.Since(c.Time.Time)), c.Who, verb, object + "/" + c.Object.Name, c.Summary(),
			c.RealUser, c.Manager, c.AuditID,
		},
		Object: runtime.RawExtension{Object: c},
	}
}

// Summary is the cell of the column Changed: the first changed fields.
func (c *Change) Summary() string {
	if c.Unreadable {
		return "<unreadable>"
	}
	var shown []string
	for _, field := range c.Changed[:min(len(c.Changed), shownFields)] {
		shown = append(shown, field.Path+": "+brief(field.Old)+" → "+brief(field.New))
	}
	if more := int64(len(c.Changed)-len(shown)) + c.MoreChanged; more > 0 {
		shown = append(shown, fmt.Sprintf("%d more", more))
	}
	return strings.Join(shown, ", ")
}

// brief cuts off a value.
func brief(value string) string {
	const most = 40
	if value == "" {
		return "<none>"
	}
	if runes := []rune(value); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return value
}

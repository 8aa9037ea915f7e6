package sqlstore

import "fmt"

// Finding is one thing that an integrity check has found wrong.
type Finding struct {
	// Row names the table and the row, such as "objects: pods default/web", or else the
	// part of the database that is wrong.
	Row string `json:"row"`
	// Reason says what is wrong with the row.
	Reason string `json:"reason"`
}

// String returns one line for an operator.
func (f Finding) String() string { return f.Row + ": " + f.Reason }

// Display returns the key as operators read it: "deployments.apps default/web".
func (k Key) Display() string {
	resource, name := k.Resource, k.Name
	if k.Group != "" {
		resource += "." + k.Group
	}
	if k.Owner != BuiltIn {
		resource += fmt.Sprintf(" (%v)", k.Owner)
	}
	if k.Namespace != "" {
		name = k.Namespace + "/" + name
	}
	return resource + " " + name
}

package sqlstore

import "fmt"

// Finding is one thing that an integrity check has found wrong.
type Finding struct {
	// Row names the row, or what else is wrong: "objects: pods default/web", for example.
	Row string `json:"row"`
	// Reason says what is wrong with it.
	Reason string `json:"reason"`
}

// String is one line for an operator.
func (f Finding) String() string { return f.Row + ": " + f.Reason }

// Display is the key as operators read it: "deployments.apps default/web".
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

package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Plan brings objects of a namespace back to what they were.
type Plan struct {
	// Steps are in the order in which they are to be made.
	Steps []*Step
	// LeftOut is what is not brought back, with the reason.
	LeftOut []string

	// owners has the UIDs of the objects by those that they had. An object that is to be created has
	// the one that it had until it is created, and is in pending.
	owners  map[types.UID]types.UID
	pending map[types.UID]bool
}

// Step is a request for one object of a plan.
type Step struct {
	Undelete
	// Verb is create, update, patch or delete.
	Verb string
	// Patch is what an update changes, or the patch, of the object or of its subresource status.
	Patch       []Operation
	subresource string
	// uid is that of the object as it is; of one that is to be created, the one that it had.
	uid             types.UID
	resourceVersion string
}

// Do makes the request of a step. It fails with ErrExists if the step has been left out. p is the plan of a step that creates or updates. dryRun has the server check the
// request and store nothing.
func (c *Client) Do(ctx context.Context, p *Plan, s *Step, dryRun bool) error {
	dry := dryRunOption(dryRun)
	switch s.Verb {
	case "delete":
		err := c.client(s.Object).Delete(ctx, s.Object.Name, metav1.DeleteOptions{
			DryRun: dry, Preconditions: &metav1.Preconditions{UID: &s.uid, ResourceVersion: &s.resourceVersion},
			PropagationPolicy: new(metav1.DeletePropagationBackground), // as kubectl: the default of some resources leaves what they own
		})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	case "patch":
		patch, err := json.Marshal(s.Patch)
		if err != nil {
			return err
		}
		var subresources []string
		if s.subresource == "status" {
			subresources = []string{"status"}
		}
		_, err = c.client(s.Object).Patch(ctx, s.Object.Name, types.JSONPatchType, patch, metav1.PatchOptions{DryRun: dry, FieldManager: manager}, subresources...)
		return err
	}
	owners := s.Content.GetOwnerReferences()
	for i := range owners {
		if p.pending[owners[i].UID] {
			return fmt.Errorf("its owner %s/%s does not exist", owners[i].Kind, owners[i].Name)
		}
		if uid, known := p.owners[owners[i].UID]; known {
			owners[i].UID = uid
		}
	}
	s.Content.SetOwnerReferences(owners)
	if s.Verb == "update" {
		_, err := c.client(s.Object).Update(ctx, s.Content, metav1.UpdateOptions{DryRun: dry, FieldManager: manager})
		return err
	}
	uid, err := c.Create(ctx, &s.Undelete, dryRun)
	if apierrors.IsAlreadyExists(err) { // as controllers do in a new namespace
		uid, err = c.replace(ctx, s, dry)
	}
	if err == nil {
		p.owners[s.uid] = uid
		delete(p.pending, s.uid)
	}
	return err
}

// ErrExists is the error for an object that is not created, because somebody else has done that.
var ErrExists = errors.New("somebody has created it meanwhile")

// replace makes the ServiceAccount default what a step would create, and returns its UID. Any other object it leaves out.
func (c *Client) replace(ctx context.Context, s *Step, dryRun []string) (types.UID, error) {
	now, err := c.client(s.Object).Get(ctx, s.Object.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if !isMade(s.Object, now) {
		s.leaveOut("all of it", ErrExists.Error())
		return "", ErrExists
	}
	content := merge(s.Object.Resource.GroupResource(), s.Content, now)
	content.SetUID(now.GetUID())
	content.SetResourceVersion(now.GetResourceVersion())
	_, err = c.client(s.Object).Update(ctx, content, metav1.UpdateOptions{DryRun: dryRun, FieldManager: manager})
	return now.GetUID(), err
}

// sort puts owners before what they own, and what is referred to before what refers to it.
func (p *Plan) sort() {
	slices.SortStableFunc(p.Steps, func(a, b *Step) int {
		order := cmp.Compare(rank(a.Object.Resource.GroupResource()), rank(b.Object.Resource.GroupResource()))
		if a.Verb == "delete" {
			order = -order
		}
		return cmp.Or(slices.Index(verbs, a.Verb)-slices.Index(verbs, b.Verb), order, cmp.Compare(a.Object.String(), b.Object.String()))
	})
	created := map[types.UID]*Step{}
	for _, s := range p.Steps {
		if s.Verb == "create" {
			created[s.uid] = s
		}
	}
	var sorted []*Step
	visited := map[*Step]bool{}
	var visit func(*Step)
	visit = func(s *Step) {
		if visited[s] {
			return
		}
		visited[s] = true
		if s.Verb == "create" {
			for _, owner := range s.Content.GetOwnerReferences() {
				if owner := created[owner.UID]; owner != nil {
					visit(owner)
				}
			}
		}
		sorted = append(sorted, s)
	}
	for _, s := range p.Steps {
		visit(s)
	}
	p.Steps = sorted
}

var (
	verbs = []string{"create", "update", "delete"}
	// first is created before other resources, and last after them.
	first = []schema.GroupResource{
		{Resource: "namespaces"}, {Resource: "serviceaccounts"}, {Resource: "configmaps"}, {Resource: "secrets"},
		{Resource: "persistentvolumeclaims"}, {Group: "rbac.authorization.k8s.io", Resource: "roles"},
		{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}, {Group: "networking.k8s.io", Resource: "networkpolicies"},
		{Resource: "services"},
	}
	last = []schema.GroupResource{
		{Group: "apps", Resource: "daemonsets"}, {Group: "apps", Resource: "deployments"}, {Group: "apps", Resource: "replicasets"},
		{Group: "apps", Resource: "statefulsets"}, {Resource: "replicationcontrollers"}, {Group: "batch", Resource: "cronjobs"},
		{Group: "batch", Resource: "jobs"}, {Resource: "pods"}, {Resource: "limitranges"}, {Resource: "resourcequotas"},
	}
)

// rank is the place of a resource in the order of creation.
func rank(resource schema.GroupResource) int {
	if i := slices.Index(first, resource); i >= 0 {
		return i
	}
	return len(first) + 1 + slices.Index(last, resource)
}

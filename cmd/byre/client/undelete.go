package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"byre/apiserver/history"
)

// Undelete is an object that is to be created again.
type Undelete struct {
	Object Object
	// Content is what is created, and Revision that of the deletion. Content is nil if the object
	// exists, so that there is nothing to do.
	Content  *unstructured.Unstructured
	Revision int64
	// LeftOut are the fields of the last version that are not created again, with the reason.
	LeftOut []string
}

// PlanUndelete returns how the last version of a deleted object is created again.
func (c *Client) PlanUndelete(ctx context.Context, o Object) (*Undelete, error) {
	u := &Undelete{Object: o}
	if now, err := c.Now(ctx, o); err != nil || now != nil {
		return u, err
	}
	deleted, err := c.deletion(ctx, o, c.Changes(ctx, o.Query(true).newest()))
	if err != nil {
		return nil, err
	}
	if _, err := c.asStored(o, deleted.content.Object); err != nil {
		return nil, err
	}
	u.Content, u.Revision = deleted.content, deleted.ended
	return u, c.prepare(ctx, u, nil)
}

// deletion is how an object was deleted: content is what it was before the revision began, and ended
// removed it. They differ if finalizers delayed the deletion.
type deletion struct {
	content      *unstructured.Unstructured
	began, ended int64
}

// deletion returns the deletion that the first of the object's changes is, or ends; the newest is the first.
func (c *Client) deletion(
	ctx context.Context, o Object, newest iter.Seq2[*history.Change, error],
) (d deletion, err error) {
	// A deletion that finalizers delayed began with an update that set the deletion timestamp, and
	// the controllers have taken the object apart since.
	for listed, err := range newest {
		if err != nil {
			return d, err
		}
		change, err := c.Change(ctx, o.changesIn(), listed.Revision)
		if err != nil {
			return d, err
		}
		v, err := version(change.Replaces, change, change.Before)
		if err != nil {
			return d, err
		}
		if v.Content == nil {
			break
		}
		content := &unstructured.Unstructured{Object: v.Content}
		if d.content == nil {
			d.ended = change.Revision
		} else if content.GetUID() != d.content.GetUID() {
			break
		}
		d.content, d.began = content, change.Revision
		if content.GetDeletionTimestamp() == nil {
			break
		}
	}
	if d.content == nil {
		return d, fmt.Errorf("%s: %w", o, errNoVersion)
	}
	return d, nil
}

// setPerInstance are the fields that the server or a controller sets for one object only, by resource; "" is
// every resource.
var setPerInstance = map[schema.GroupResource][][]string{
	{}:                 {{"status"}},
	{Resource: "pods"}: {{"spec", "nodeName"}},
	{Group: "batch", Resource: "jobs"}: {{"spec", "selector"},
		{"spec", "template", "metadata", "labels", "controller-uid"},
		{"spec", "template", "metadata", "labels", "batch.kubernetes.io/controller-uid"}},
	{Resource: "namespaces"}:      {{"spec", "finalizers"}},
	{Resource: "services"}:        {{"spec", "healthCheckNodePort"}},
	{Resource: "serviceaccounts"}: {{"secrets"}},
	{Resource: "persistentvolumeclaims"}: {
		{"metadata", "annotations", "pv.kubernetes.io/bind-completed"},
		{"metadata", "annotations", "pv.kubernetes.io/bound-by-controller"},
	},
	{Group: "apps", Resource: "deployments"}: {{"metadata", "annotations", "deployment.kubernetes.io/revision"}},
}

// instanceFields returns the paths of setPerInstance in an object of a resource.
func instanceFields(resource schema.GroupResource, content map[string]any) [][]string {
	if manual, _, _ := unstructured.NestedBool(content, "spec", "manualSelector"); manual {
		return setPerInstance[schema.GroupResource{}] // a Job whose selector its author has set
	}
	return slices.Concat(setPerInstance[schema.GroupResource{}], setPerInstance[resource])
}

// prepare takes out of the content what can't be created again. owners has the UIDs of objects that have
// been created again, by those that they had.
func (c *Client) prepare(ctx context.Context, u *Undelete, owners map[types.UID]types.UID) error {
	content := u.Content
	// The content is in the version in which it was stored.
	u.Object.Resource.Version = content.GroupVersionKind().Version
	content.Object = strip(content.Object)
	for _, path := range instanceFields(u.Object.Resource.GroupResource(), content.Object) {
		if _, exists, _ := unstructured.NestedFieldNoCopy(content.Object, path...); exists {
			unstructured.RemoveNestedField(content.Object, path...)
			u.leaveOut(strings.Join(path, "."), "the server sets it")
		}
	}
	return c.resolveOwners(ctx, u, owners)
}

// resolveOwners leaves out the owners that are gone, and gives the others the UIDs that they have.
func (c *Client) resolveOwners(ctx context.Context, u *Undelete, owners map[types.UID]types.UID) error {
	var kept []metav1.OwnerReference
	for _, owner := range u.Content.GetOwnerReferences() {
		uid, exists := owners[owner.UID]
		if exists {
			owner.UID = uid
		} else {
			var err error
			if exists, err = c.exists(ctx, owner, u.Object.Namespace); err != nil {
				return err
			}
		}
		if exists {
			kept = append(kept, owner)
			continue
		}
		u.leaveOut("metadata.ownerReferences: "+owner.Kind+"/"+owner.Name, "it is gone")
	}
	u.Content.SetOwnerReferences(kept)
	return nil
}

func (u *Undelete) leaveOut(what, why string) { u.LeftOut = append(u.LeftOut, what+" ("+why+")") }

// exists reports whether an owner is still there.
func (c *Client) exists(ctx context.Context, owner metav1.OwnerReference, namespace string) (bool, error) {
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return false, err
	}
	mapping, err := c.mapper.RESTMapping(schema.GroupKind{Group: version.Group, Kind: owner.Kind}, version.Version)
	if err != nil {
		return false, nil //nolint:nilerr // a kind that is not served has no objects
	}
	o, err := c.objectOf(mapping.Resource, namespace, owner.Name)
	if err != nil {
		return false, err
	}
	object, err := c.client(o).Get(ctx, owner.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && object.GetUID() == owner.UID, err
}

// Create creates the object and returns its UID. If an address of a Service is taken, the Service gets
// another one.
func (c *Client) Create(ctx context.Context, u *Undelete, dryRun bool) (types.UID, error) {
	create := func() (types.UID, error) {
		created, err := c.client(u.Object).Create(ctx, u.Content,
			metav1.CreateOptions{DryRun: dryRunOption(dryRun), FieldManager: manager})
		if err != nil {
			return "", err
		}
		return created.GetUID(), nil
	}
	uid, err := create()
	if !apierrors.IsInvalid(err) {
		return uid, err
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil { // of a webhook
		return "", err
	}
	again, fields := false, addresses[u.Object.Resource.GroupResource()]
	for _, cause := range status.Status().Details.Causes {
		if !slices.ContainsFunc(fields, func(path []string) bool {
			return strings.HasPrefix(cause.Field, strings.Join(path, "."))
		}) {
			continue
		}
		again = true
		for _, field := range fields {
			unstructured.RemoveNestedField(u.Content.Object, field...)
		}
		u.leaveOut(cause.Field, "it is taken")
	}
	if !again {
		return "", err
	}
	return create()
}

// addresses are the fields of a resource whose values only one object may have.
var addresses = map[schema.GroupResource][][]string{
	{Resource: "services"}: {{"spec", "clusterIP"}, {"spec", "clusterIPs"}},
}

// PlanUndeleteNamespace returns how the namespace, which is deleted, is created again with the objects that its
// deletion deleted. Of a namespace that exists again, what is missing of them is created.
func (c *Client) PlanUndeleteNamespace(ctx context.Context) (*Plan, error) {
	r := newRecovery(c, "")
	if err := r.mayListAll(ctx, changesResource); err != nil {
		return nil, err
	}
	o := Object{corev1.SchemeGroupVersion.WithResource("namespaces"), "", c.namespace}
	if err := r.mayListAll(ctx, o.Resource); err != nil {
		return nil, err
	}
	deleted, exists, err := c.namespaceDeletion(ctx, o)
	if err != nil {
		return nil, err
	}
	r.since, r.until = strconv.FormatInt(deleted.began, 10), strconv.FormatInt(deleted.ended, 10)
	resources, err := r.resources()
	if err != nil {
		return nil, err
	}
	for _, resource := range resources {
		if err := r.mayListAll(ctx, resource); err != nil {
			return nil, err
		}
		if err := r.read(ctx, resource); apierrors.IsResourceExpired(err) {
			r.leaveOut(resource.GroupResource().String(), err.Error())
		} else if err != nil {
			return nil, err
		}
	}
	if err := r.leaveOutUndefined(ctx, resources); err != nil {
		return nil, err
	}
	if !exists {
		r.objects = append(r.objects, &changed{Object: o, then: deleted.content})
	}
	return r.plan(ctx, func(o *changed) (*Step, error) {
		switch {
		case o.then != nil && o.now == nil:
			return r.create(ctx, o)
		case o.then != nil && isMade(o.Object, o.now):
			return r.update(ctx, o)
		}
		return nil, nil //nolint:nilnil // nothing to do
	})
}

// mayListAll fails if the user may not list a resource in all namespaces, and says why that is needed.
func (r *recovery) mayListAll(ctx context.Context, resource schema.GroupVersionResource) error {
	err := r.mayList(ctx, resource, metav1.NamespaceAll)
	if apierrors.IsForbidden(err) {
		return fmt.Errorf(
			"what a deleted namespace held is shown only to users who may list it in all namespaces, and you may not list %s: ask a cluster administrator",
			resource.GroupResource())
	}
	return err
}

// namespaceDeletion returns the last deletion of a namespace, and whether the namespace exists again.
func (c *Client) namespaceDeletion(ctx context.Context, o Object) (d deletion, exists bool, err error) {
	now, err := c.Now(ctx, o)
	if err != nil {
		return d, false, err
	}
	if now != nil {
		if metadata, ok := now["metadata"].(map[string]any); ok && metadata["deletionTimestamp"] != nil {
			return d, true, fmt.Errorf("namespace %s is still being deleted: wait until it is gone", o.Name)
		}
	}
	isLater := now != nil
	d, err = c.deletion(ctx, o, func(yield func(*history.Change, error) bool) {
		for change, err := range c.Changes(ctx, o.Query(true).newest()) {
			if err == nil && isLater { // it has changed since it was created again
				isLater = change.Replaces > 0
				continue
			}
			if !yield(change, err) {
				return
			}
		}
	})
	if errors.Is(err, errNoVersion) {
		return d, now != nil, fmt.Errorf("the history has no deletion of namespace %s", o.Name)
	}
	if err == nil && d.content.GetDeletionTimestamp() != nil {
		err = fmt.Errorf("the history does not reach back to when the deletion of namespace %s began", o.Name)
	}
	return d, now != nil, err
}

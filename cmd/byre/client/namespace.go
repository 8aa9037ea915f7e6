package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

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
		return fmt.Errorf("what a deleted namespace held is shown only to users who may list it in all namespaces, and you may not list %s: ask a cluster administrator",
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
	changes, err := c.Changes(ctx, o.Query(true))
	if err != nil {
		return d, false, err
	}
	if now != nil {
		if metadata, ok := now["metadata"].(map[string]any); ok && metadata["deletionTimestamp"] != nil {
			return d, true, fmt.Errorf("namespace %s is still being deleted: wait until it is gone", o.Name)
		}
		last := len(changes) - 1
		for last >= 0 && changes[last].Replaces > 0 {
			last-- // what has changed since it was created again
		}
		changes = changes[:max(last, 0)]
	}
	d, err = c.deletion(ctx, o, changes)
	if errors.Is(err, errNoVersion) {
		return d, now != nil, fmt.Errorf("the history has no deletion of namespace %s", o.Name)
	}
	if err == nil && d.content.GetDeletionTimestamp() != nil {
		err = fmt.Errorf("the history does not reach back to when the deletion of namespace %s began", o.Name)
	}
	return d, now != nil, err
}

// Package write serves the requests that change objects: create, update, patch, apply and
// delete. Each verb is one function that is read from top to bottom.
//
// The order of the steps, the words of the errors and the warnings are those of
// k8s.io/apiserver/pkg/endpoints/handlers, whose functions a client must not be able to
// tell from these. The functions below follow, line by line, these of release 1.37; to
// follow a later release, read the difference between the two releases of these files:
//
//	verbs.go    create.go: createHandler
//	            update.go: UpdateResource, withAuthorization, updateToCreateOptions
//	            delete.go: DeleteResource, authorizeUnsafeDelete
//	patch.go    patch.go: PatchResource, patcher, jsonPatcher, smpPatcher, applyPatcher
//	request.go  what the verbs have in common, and finisher/finisher.go: FinishRequest
//	            rest.go: transformDecodeError, hasUID, checkName, dedupOwnerReferences
//	            response.go: transformResponseObject, asTable, asPartialObjectMetadata
//
// They differ from upstream in this:
//
//   - A request is served in its own goroutine. Upstream runs the storage in a second one, so
//     that it can answer at the deadline; here the storage and admission end at the deadline
//     of their context, and the timeout filter answers if they do not.
//
//   - Managed fields are a step (managedfields.Manager), which knows the fields of most
//     requests without upstream's field manager. A merge patch that can't name managed fields
//     is merged into the object without them: they are most of a small object's JSON.
//
//   - The answer is the bytes that were stored, where the client asks for the form that is
//     stored (storage.Request).
//
//   - Upstream writes an object again, without managed fields, that is too large for etcd. Here the
//     storage does that.
//
// TestWrite_AnswersAsUpstream sends the same requests to both and compares the answers.
//
// The package starts no goroutine and needs no shutdown.
package write

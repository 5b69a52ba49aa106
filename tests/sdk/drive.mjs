// Drives a running server through the published client, unmodified. Any mismatch throws.
import assert from "node:assert/strict";
import { SnackBaseClient } from "@snackbase/sdk";

const [baseUrl, account, email, rootEmail, password] = process.argv.slice(2);
const client = (options = {}) => new SnackBaseClient({ baseUrl, maxRetries: 0, storageBackend: "memory", ...options });
const refused = (status, promise) => assert.rejects(promise, (error) => error.status === status);

const root = client();
const signedIn = await root.auth.login({ account: "system", email: rootEmail, password });
assert.equal(signedIn.token_type, "bearer");
assert.ok(root.isAuthenticated && root.isSuperadmin);

const alice = client();
await assert.rejects(alice.auth.login({ account, email, password: "wrong" }), { name: "AuthenticationError" });
await alice.auth.login({ account, email, password });
const me = await alice.auth.getCurrentUser();
assert.deepEqual([me.user.email, me.account.slug, me.user.token_type], [email, account, "jwt"]);
const before = alice.authService.auth.refreshToken;
await alice.auth.refreshToken();
assert.notEqual(alice.authService.auth.refreshToken, before);
assert.ok((await alice.auth.resendVerificationEmail()).message);
assert.ok((await alice.auth.sendVerification(email)).message);
assert.ok((await alice.auth.forgotPassword({ email, account })).message);
assert.equal((await alice.auth.verifyResetToken("nothing")).valid, false);

// Accounts and users, as superadmin.
const made = await root.accounts.create({ name: "Client Made" });
assert.equal(made.slug, "client-made");
assert.equal((await root.accounts.get(made.id)).name, "Client Made");
assert.equal((await root.accounts.update(made.id, { name: "Client" })).name, "Client");
assert.ok((await root.accounts.list({ search: "client", page: 1, page_size: 10 })).total >= 1);
const roles = await root.roles.list();
const viewer = roles.items.find((role) => role.name === "viewer");
const user = await root.users.create({ email: "made@client.example", password, account_id: made.id, role_id: viewer.id });
assert.equal(user.role, "viewer");
assert.equal((await root.users.get(user.id)).email, "made@client.example");
assert.equal((await root.users.update(user.id, { is_active: false })).is_active, false);
assert.equal((await root.users.list({ account_id: made.id })).total, 1);
assert.equal((await root.accounts.getUsers(made.id)).total, 1);
await root.users.setPassword(user.id, password);
assert.ok((await root.users.verifyEmail(user.id)).message);
await root.users.resendVerification(user.id);
await root.users.delete(user.id);
await root.accounts.delete(made.id);
await refused(404, root.accounts.get(made.id));
await refused(403, alice.users.list());

const role = await root.roles.create({ name: "auditor", description: "Reads all." });
assert.equal((await root.roles.update(role.id, { name: "auditors" })).name, "auditors");
assert.equal((await root.roles.get(role.id)).name, "auditors");
const validity = [await root.roles.validateRule("true"), await root.roles.validateRule("(")];
assert.deepEqual(validity.map(({ valid, error }) => [valid, typeof error]), [[true, "object"], [false, "string"]]);
const trial = { record: { created_by: "u1" }, auth: { id: "u1", role: "viewer" } };
const { allowed, error, evaluation_details: details } = await root.roles.testRule("@owns_record()", trial);
assert.deepEqual([allowed, error, details], [true, null, null]);
assert.equal((await root.roles.getPermissions(role.id)).total, 0);
assert.deepEqual((await root.roles.getPermissionsMatrix(role.id)).items, []);
await refused(404, root.roles.updatePermissionsBulk(role.id, { updates: [] }));
await root.roles.delete(role.id);

// The team, as the account's admin.
const group = await alice.groups.create({ name: "finance" });
assert.equal((await alice.groups.update(group.id, { description: "Counts." })).description, "Counts.");
await alice.groups.addMember(group.id, me.user.id);
assert.equal((await alice.groups.get(group.id)).name, "finance");
await alice.groups.removeMember(group.id, me.user.id);
assert.ok((await alice.groups.list()).items.some((one) => one.name === "pii_access"));
await alice.groups.delete(group.id);

const invitation = await alice.invitations.create({ email: "guest@acme.example" });
assert.equal(invitation.status, "pending");
assert.equal((await alice.invitations.list()).invitations.length, 1);
const theirs = { account_id: me.account.id, status_filter: "pending", page: 1, page_size: 5 };
assert.equal((await root.invitations.list(theirs)).invitations[0].id, invitation.id);
const again = await alice.invitations.resend(invitation.id);
assert.ok(again.message);
const open = await client().invitations.getPublic(again.token);
assert.deepEqual([open.email, open.is_valid], ["guest@acme.example", true]);
const joined = await client().invitations.accept(again.token, password);
assert.equal(joined.user.role, "viewer");
const other = await alice.invitations.create({ email: "never@acme.example" });
await alice.invitations.cancel(other.id);

const key = await alice.apiKeys.create({ name: "from the client" });
assert.match(key.key, /^svc_sk_[A-Z]{2}[0-9]{4}_[A-Za-z0-9]{32}$/);
assert.equal((await alice.apiKeys.list()).total, 1);
assert.equal((await alice.apiKeys.get(key.id)).name, "from the client");
const machine = client({ apiKey: key.key });
assert.equal((await machine.httpClient.get("/api/v1/auth/me")).data.user.token_type, "api_key");

// Collections, rules and records.
const fields = [{ name: "title", type: "text", required: true, options: null }, { name: "pages", type: "number" }];
const books = await root.collections.create({ name: "books", fields });
assert.equal(books.fields.length, 2);
const wider = [...books.fields, { name: "read", type: "boolean" }];
assert.equal((await root.collections.update(books.id, { schema: wider })).fields.length, 3);
assert.deepEqual(await root.collections.listNames(), ["books"]);
const { items: [found], total } = await root.collections.listPaginated({ page: 1, page_size: 5, sort_by: "created_at", sort_order: "desc", search: "oo" });
assert.deepEqual([total, found.fields_count, found.records_count, found.has_public_access], [1, 3, 0, false]);
const saved = await root.collections.export({ collection_ids: [books.id] });
assert.deepEqual([saved.exported_by, saved.collections[0].name, saved.collections[0].schema.length], [rootEmail, "books", 3]);
assert.equal((await root.collections.import({ data: saved, strategy: "skip" })).skipped_count, 1);
assert.equal((await root.collections.import({ data: saved, strategy: "update" })).updated_count, 1);
await refused(409, root.collections.import({ data: saved }));
assert.equal((await root.collections.list()).length, 1);
const open_ = { list_rule: "true", view_rule: "true", create_rule: "true", update_rule: "true", delete_rule: "true" };
assert.equal((await root.collectionRules.update("books", open_)).list_rule, "true");
const rules = await root.collectionRules.get("books");
assert.equal((await root.collectionRules.update("books", { ...rules, view_fields: "*" })).view_fields, "*");
const [permissions] = (await root.roles.getPermissions(viewer.id)).items;
assert.deepEqual([permissions.role_id, permissions.collection, permissions.create.rule], [viewer.id, "books", "true"]);
const cells = { list: "all", view: "all", create: "all", update: "all", delete: "all" };
assert.deepEqual((await root.roles.getPermissionsMatrix(viewer.id)).items, [{ collection: "books", ...cells }]);

const book = await alice.records.create("books", { title: "One", pages: 10 });
assert.equal((await machine.records.get("books", book.id)).title, "One");
assert.equal((await alice.records.update("books", book.id, { title: "Two" })).pages, null);
assert.equal((await alice.records.patch("books", book.id, { pages: 12 })).title, "Two");
const listed = await alice.records.list("books", { limit: 5, sort: "-pages", fields: ["title"] });
assert.deepEqual([listed.total, listed.items[0].title], [1, "Two"]);
const start = await alice.records.list("books", { cursor: "", sort: "-pages", limit: 1 });
assert.deepEqual([start.items[0].id, start.has_more, start.next_cursor], [book.id, false, null]);
const second = await alice.records.create("books", { title: "Three", pages: 3 });
const pageOne = await alice.records.list("books", { cursor: "", sort: "-pages", limit: 1 });
const byPages = alice.records.query("books").sort("pages", "desc").limit(1);
const pageTwo = await byPages.cursor(pageOne.next_cursor).get();
assert.deepEqual([pageTwo.items[0].id, pageTwo.has_more], [second.id, false]);
const sums = { functions: "count(),sum(pages)", group_by: "title", having: "count() > 0" };
const totals = await alice.records.aggregate("books", { ...sums, filter: "pages > 5" });
assert.deepEqual(totals, { results: [{ title: "Two", count: 1, sum_pages: 12 }], total_groups: 1 });
await alice.records.delete("books", second.id);
const { created } = await alice.records.batchCreate("books", [{ title: "Four" }, { title: "Five" }]);
assert.deepEqual(created.map((one) => one.title), ["Four", "Five"]);
const changes = created.map(({ id }) => ({ id, data: { pages: 1 } }));
const { updated, count } = await alice.records.batchUpdate("books", changes);
assert.deepEqual([updated.map((one) => one.pages), count], [[1, 1], 2]);
const ids = created.map(({ id }) => id);
assert.deepEqual(await alice.records.batchDelete("books", ids), { deleted: ids, count: 2 });
await machine.records.delete("books", book.id);
await refused(404, alice.records.get("books", book.id));

// Files: uploaded, downloaded by an address with the token in it, deleted; then taken by a record.
const covers = [...wider, { name: "cover", type: "file" }];
await root.collections.update(books.id, { schema: covers });
const bytes = new Blob(["of a cover"], { type: "text/plain" });
const lost = await alice.files.upload(bytes, { filename: "lost.txt" });
assert.deepEqual([lost.filename, lost.size, lost.mime_type], ["lost.txt", 10, "text/plain"]);
assert.equal(await (await fetch(alice.files.getDownloadUrl(lost.path))).text(), "of a cover");
assert.deepEqual(await alice.files.delete(lost.path), { success: true });
assert.equal((await fetch(alice.files.getDownloadUrl(lost.path))).status, 404);
const cover = await alice.files.upload(bytes, { filename: "cover.txt" });
const covered = await alice.records.create("books", { title: "Covered", cover: cover.id });
assert.equal(covered.cover.sha256, cover.sha256);
assert.equal(await (await fetch(alice.files.getDownloadUrl(cover.path))).text(), "of a cover");
await alice.records.delete("books", covered.id);

// Webhooks.
const hook = await alice.webhooks.create({ url: `${baseUrl}/health`, collection: "books", events: ["create", "update"], secret: "s3cret", headers: { "X-Mine": "1" } });
assert.equal(hook.secret, "s3cret");
assert.equal((await alice.webhooks.get(hook.id)).secret, undefined);
assert.deepEqual((await alice.webhooks.update(hook.id, { events: ["delete"] })).events, ["delete"]);
assert.equal((await alice.webhooks.list()).total, 1);
const tested = await alice.webhooks.test(hook.id);
assert.deepEqual([tested.success, tested.status_code], [false, 405]);
const sent = await alice.webhooks.listDeliveries(hook.id, { limit: 5, offset: 0 });
assert.deepEqual([sent.total, sent.items[0].event, sent.items[0].response_status], [1, "webhook.test", 405]);
await alice.webhooks.delete(hook.id);
await refused(404, alice.webhooks.get(hook.id));

// Workflows and hooks.
const step = { name: "note", type: "action", action_type: "create_record", config: { collection: "books", data: { title: "{{ trigger.title }}" } } };
const flow = await alice.workflows.create({ name: "Note", trigger: { type: "manual" }, steps: [step, { name: "rest", type: "wait_delay", duration: "1h" }] });
assert.deepEqual([flow.trigger_type, flow.enabled, flow.steps.length], ["manual", true, 2]);
assert.equal((await alice.workflows.update(flow.id, { name: "Notes" })).name, "Notes");
assert.equal((await alice.workflows.list({ trigger_type: "manual", limit: 5, offset: 0 })).total, 1);
const { instance_id: run } = await alice.workflows.trigger(flow.id, { title: "Noted" });
const settled = async () => {
  for (let tries = 0; tries < 100; tries += 1) {
    const found = await alice.workflows.getInstance(run);
    if (!["pending", "running"].includes(found.status)) return found;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error("the workflow does not move");
};
const waiting = await settled();
assert.deepEqual([waiting.status, waiting.current_step, waiting.step_logs[0].status], ["waiting", "rest", "completed"]);
assert.equal(waiting.context.steps.note.output.title, "Noted");
assert.equal(waiting.resume_job_id, null);
assert.equal((await alice.workflows.listInstances(flow.id, { status: "waiting" })).total, 1);
await refused(409, alice.workflows.resumeInstance(run));
assert.equal((await alice.workflows.cancelInstance(run)).status, "cancelled");
assert.equal((await alice.workflows.toggle(flow.id)).enabled, false);
await alice.workflows.delete(flow.id);
const deed = { type: "delete_record", config: { collection: "books", record_id: "{{ trigger.id }}" } };
const nightly = await alice.hooks.create({ name: "Nightly", trigger: { type: "schedule", cron: "0 4 * * *" }, actions: [deed] });
assert.deepEqual([nightly.cron, nightly.actions], ["0 4 * * *", [deed]]);
assert.equal((await alice.hooks.update(nightly.id, { trigger: { type: "manual" } })).trigger.type, "manual");
assert.ok((await alice.hooks.trigger(nightly.id)).instance_id);
assert.equal((await alice.hooks.listExecutions(nightly.id, { limit: 5, offset: 0 })).total, 1);
assert.equal((await alice.hooks.list({ enabled: true })).total, 1);
assert.equal((await alice.hooks.toggle(nightly.id)).enabled, false);
await alice.hooks.delete(nightly.id);
await refused(404, alice.hooks.get(nightly.id));
await root.collections.delete(books.id);
const restored = await root.collections.import({ data: await root.collections.export() });
assert.deepEqual([restored.success, restored.imported_count], [true, 0]);
const back = await root.collections.import({ data: saved, strategy: "error" });
assert.deepEqual([back.collections[0].status, back.migrations_created.length], ["imported", 1]);

// Sign-in by providers.
const [back_to, visitor] = ["https://client.example.com/in", client({ accountId: account })];
const config = { client_id: "x", client_secret: "y", allowed_redirect_uris: [back_to] };
const provider = { category: "auth_providers", provider_name: "google", display_name: "Google", config };
const google = await alice.admin.createConfiguration(provider);
assert.equal(google.status, "created");
const stats = await root.admin.getConfigurationStats();
assert.deepEqual([stats.system_configs.total, stats.account_configs.by_category.auth_providers], [0, 1]);
assert.equal((await root.admin.getRecentConfigurations())[0].id, google.id);
assert.deepEqual(await root.admin.listSystemConfigurations(), []);
assert.equal((await alice.admin.listAccountConfigurations(me.account.id, "auth_providers"))[0].id, google.id);
assert.equal((await root.admin.listProviders("saml_providers")).items[0].category, "saml_providers");
// A superadmin needs no account to name settings by their id.
assert.equal((await root.admin.updateConfigurationValues(google.id, { client_id: "z" })).client_id, "z");
assert.equal((await root.admin.getConfigurationValues(google.id)).client_id, "z");
await refused(404, alice.admin.setConfigurationDefault(google.id));
assert.equal((await alice.admin.getConfigurationValues(google.id)).client_secret, "***");
const { status, enabled, is_default: isDefault } = await root.admin.updateConfigurationStatus(google.id, true);
assert.deepEqual([status, enabled, isDefault], ["updated", true, false]);
assert.equal((await alice.admin.getProviderSchema("auth_providers", "google")).type, "object");
const begun = await visitor.auth.getOAuthUrl("google", back_to, "mine");
assert.deepEqual([begun.state, begun.provider], ["mine", "google"]);
assert.ok(begun.authorization_url.startsWith("https://accounts.google.com/"));
const returned = { provider: "google", code: "nothing", redirectUri: back_to, state: "mine" };
await refused(400, visitor.auth.handleOAuthCallback(returned));
await refused(404, visitor.auth.getSAMLUrl("generic_saml", account));
await refused(404, visitor.auth.getSAMLMetadata("generic_saml", account));
await alice.admin.deleteConfiguration(google.id);

// The dashboard, of an account and of all.
const figures = await alice.dashboard.getStats({ range: "30d" });
assert.deepEqual([figures.range, figures.total_accounts, figures.time_series.users_created.length], ["30d", 1, 30]);
const { total_accounts: accounts, recent_audit_logs: logs } = await root.dashboard.getStats();
assert.deepEqual([accounts >= 1, logs.length, typeof logs[0].checksum], [true, 10, "string"]);

await alice.apiKeys.revoke(key.id);
await assert.rejects(machine.records.list("books"), { name: "AuthenticationError" });
assert.ok((await root.migrations.list()).total >= 1);
await alice.auth.logout();
assert.equal(alice.isAuthenticated, false);
console.log("the client is served");

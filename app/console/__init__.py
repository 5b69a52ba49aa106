"""The console: server-rendered pages for account admins and superadmins."""

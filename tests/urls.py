"""No URLs of our own but the admin; tests of views call them, or bring a URLconf."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]

"""Addresses of the shop."""

from django.urls import path

from shop import views

urlpatterns = [
    path("", views.index, name="index"),
    path("order/<int:id>/confirm", views.confirm, name="confirm"),
    path("order/<int:id>/confirm-slowly", views.confirm_slowly, name="confirm-slowly"),
    path("order/<int:id>/cancel", views.CancelOrder.as_view(), name="cancel"),
    path("stock/<slug:sku>/sell", views.sell, name="sell"),
    path("stock/<slug:sku>/restock", views.Restock.as_view(), name="restock"),
]
